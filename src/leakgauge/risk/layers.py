"""Equations and unknowns of a model, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.risk.counting import highest_rank, low_rank, unknown_labels
from leakgauge.task import Task, cross_entropy

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """What one layer's gradient gives, and what enters the layer.

    Attributes:
        name, kind: of the module.
        equations: entries of its gradient.
        independent: of these at most so many say something of their own, as ∂L/∂[W b] is a sum of one rank-one
            term an example and position.
        unknowns: numbers of the batch that enter it; for the first layer the examples themselves.
    """

    name: str
    kind: str
    equations: int
    independent: int
    unknowns: int


@dataclass(frozen=True, kw_only=True)
class ModelCount:
    """All layers in the order in which they run.

    Attributes:
        gate: whether the input reaches the loss through the first layer alone.
        unknowns: numbers in the examples, and B·(n₂ − 1) for soft labels.
        bound: a rank that the update's Jacobian cannot exceed.
    """

    layers: tuple[LayerCount, ...]
    gate: bool
    unknowns: int
    bound: int

    @property
    def equations(self) -> int:
        """Entries of the update."""
        return sum(layer.equations for layer in self.layers)


@dataclass
class _Call:
    module: nn.Module
    inputs: int
    rows: int
    output: Tensor
    times: int = 1


def count_layers(task: Task, batch: int, *, soft_labels: bool = False) -> ModelCount:
    """Counts by one forward pass of two examples. Layers that run several times, or whose kind is not linear or
    convolutional, are given all their entries."""
    calls, logits, bypassed = _trace(task)
    names = {module: name for name, module in task.module.named_modules()}
    layers = []
    for call in calls:
        own = _own(task, names[call.module], call.module)
        final = call is calls[-1] and isinstance(call.module, nn.Linear) and call.output.shape == logits.shape
        final = final and task.loss is cross_entropy and bool(torch.equal(call.output, logits))
        layers.append(
            LayerCount(
                name=names[call.module] or "(model)",
                kind=type(call.module).__name__,
                equations=sum(own.values()),
                independent=_independent(call, own, batch, final=final),
                unknowns=batch * call.inputs,
            )
        )
    missing = sum(v.numel() for v in task.parameters.values()) - sum(layer.equations for layer in layers)
    if missing:
        layers.append(LayerCount(name="others", kind="", equations=missing, independent=missing, unknowns=0))
    free = unknown_labels(task.data.classes, batch, soft_labels=soft_labels)
    inputs = int(torch.Size(task.data.shape).numel())
    bound = min(batch * inputs + free, sum(layer.independent for layer in layers))
    first = calls[0] if calls else None
    gate = (
        first is not None
        and first.times == 1
        and not bypassed
        and isinstance(first.module, (nn.Linear, *_CONVOLUTIONS))
    )
    if first is not None and gate and _plain(first):
        weight = first.module.weight
        assert isinstance(weight, Tensor)
        sharper = highest_rank(
            rows=weight.shape[0],
            columns=weight[0].numel(),
            hidden=first.output[0].numel(),
            inputs=inputs,
            later=sum(layer.independent for layer in layers[1:]),
            batch=batch,
            free=free,
            bias=first.module.bias is not None,
        )
        bound = min(bound, sharper)
    return ModelCount(layers=tuple(layers), gate=gate, unknowns=batch * inputs + free, bound=bound)


def _trace(task: Task) -> tuple[list[_Call], Tensor, bool]:
    """Layers with parameters as they are first called, the logits, and whether the input passes by the first."""
    calls: dict[nn.Module, _Call] = {}

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if module in calls:
            calls[module].times += 1
            return None
        rows = output[0, 0].numel() if isinstance(module, _CONVOLUTIONS) else output[0].numel() // output.shape[-1]
        calls[module] = _Call(module, inputs[0][0].numel(), rows, output.detach())
        # The first layer's output is cut off: what gradient the input then has came another way.
        return output.detach() if len(calls) == 1 else None

    like = next(iter(task.parameters.values()))
    raw = torch.rand((2, *task.data.shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    raw = (task.data.low + task.data.range * raw).to(like).requires_grad_()
    owners = [m for n, m in task.module.named_modules() if _own(task, n, m)]
    handles = [m.register_forward_hook(record) for m in owners]
    try:
        logits, _ = task.logits(task.parameters, task.buffers, raw)
    finally:
        for handle in handles:
            handle.remove()
    if not logits.requires_grad:
        return list(calls.values()), logits.detach(), False
    (slope,) = torch.autograd.grad(logits.square().sum(), raw, allow_unused=True)
    return list(calls.values()), logits.detach(), slope is not None and bool(slope.any())


def _own(task: Task, name: str, module: nn.Module) -> dict[str, int]:
    """Entries of the trained parameters that the module itself holds."""
    prefix = f"{name}." if name else ""
    held = {n: p.numel() for n, p in module.named_parameters(recurse=False)}
    return {n: entries for n, entries in held.items() if prefix + n in task.parameters}


def _independent(call: _Call, own: dict[str, int], batch: int, *, final: bool) -> int:
    module, entries = call.module, sum(own.values())
    if not _plain(call) or "weight" not in own:
        return entries
    weight = module.weight
    assert isinstance(weight, Tensor)
    # Output errors of a soft-max sum to zero over the classes.
    out, columns = weight.shape[0] - final, weight[0].numel() + ("bias" in own)
    return min(entries, low_rank(out, columns, batch * call.rows))


def _plain(call: _Call) -> bool:
    """A layer that runs once, whose weight's gradient is a matrix product."""
    module = call.module
    if isinstance(module, _CONVOLUTIONS):
        return call.times == 1 and module.groups == 1
    return call.times == 1 and isinstance(module, nn.Linear)
