"""How strongly each example drives each row of each layer: one backward pass, no per-example weight gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from leakgauge.inspection.matrices import Omission
from leakgauge.task import Batch, Mode, Task

Convolution = nn.modules.conv._ConvNd
VALUES_AT_ONCE = 2**20
"""Input values per backward pass; bounds memory (VGG16 at 224 px: six examples at a time)."""

ALONE = 0.99
"""Share of a row's total drive from which it belongs to one example."""
FITTED = 1e-7
"""Relative residual below which an example counts as fitted perfectly: float32 rounds its probability to one."""


@dataclass(frozen=True, eq=False)
class LayerDrive:
    """What one layer's weight gradient is made of, example by example.

    The loss gradient at the model's answer is scaled to length one for every example first, so that an
    example that the model fits well counts like any other.

    Attributes:
        name: of the module.
        linear: a linear layer; otherwise a convolution.
        head: its output is the model's answer.
        rows: length of the gradient at each output unit or channel, over all positions.
        inputs: length of what the layer reads.
    """

    name: str
    linear: bool
    head: bool
    rows: Float[Tensor, "n rows"]
    inputs: Float[Tensor, " n"]

    @property
    def gain(self) -> Float[Tensor, " n"]:
        """‖δ‖·‖a‖ per example: the length of its weight gradient for a linear layer, an upper bound for others."""
        lengths: Tensor = self.rows.norm(dim=1)
        return lengths * self.inputs


@dataclass(frozen=True, eq=False)
class Drives:
    """All layers of one model on one batch, in the order in which they run.

    Attributes:
        layers: linear layers and convolutions that ran.
        residuals: length of the loss gradient at the answer, before it is scaled.
        finite: examples whose answer, loss and gradients are finite numbers.
        remarks: what the measurement could not cover, each with the reason.
    """

    layers: tuple[LayerDrive, ...]
    residuals: Float[Tensor, " n"]
    finite: Bool[Tensor, " n"]
    remarks: tuple[Omission, ...]

    @property
    def erring(self) -> Bool[Tensor, " n"]:
        """Finite examples that the loss moves at all: those with at least `FITTED` of the largest residual."""
        return self.finite & (self.residuals > FITTED * self.residuals.max())

    @property
    def hidden(self) -> tuple[LayerDrive, ...]:
        """Layers below the one that answers."""
        return tuple(layer for layer in self.layers if not layer.head)


def driven(rows: Float[Tensor, "n rows"]) -> Bool[Tensor, "n rows"]:
    """Which example drives which row: by more than (1 − ALONE) of the row's total, in rows that are driven at all."""
    total = rows.sum(0)
    live = total > 1e-6 * total.max()
    return (rows > (1 - ALONE) * total) & live


def holds_weights(layer: nn.Module) -> bool:
    """Whether it has parameters: a layer that `leakgauge.view.normal` calls another one for has none."""
    return any(True for _ in layer.parameters())


def in_eval(task: Task) -> Task:
    """The same task in eval mode: there, examples do not mix and nothing is drawn."""
    if task.mode is Mode.EVAL:
        return task
    return replace(task, module=task.module_copy().eval(), mode=Mode.EVAL, stochastic=False)


def drives(task: Task, batch: Batch) -> Drives:
    """Measures a batch, a few examples at a time. The task is not changed."""
    like = next(iter(task.parameters.values()))
    quiet = in_eval(task)
    inputs = batch.inputs.to(like)
    size = max(1, VALUES_AT_ONCE // max(1, math.prod(task.data.shape)))
    parts = [
        _some(quiet, x, y) for x, y in zip(torch.split(inputs, size), torch.split(batch.labels, size), strict=True)
    ]
    layers = tuple(
        LayerDrive(
            first.name,
            first.linear,
            first.head,
            torch.cat([part.layers[i].rows for part in parts]),
            torch.cat([part.layers[i].inputs for part in parts]),
        )
        for i, first in enumerate(parts[0].layers)
    )
    residuals, finite = torch.cat([p.residuals for p in parts]), torch.cat([p.finite for p in parts])
    remarks = _remarks(task, {layer.name for layer in layers})
    return Drives(layers, residuals, finite, remarks)


def _remarks(task: Task, measured: set[str]) -> tuple[Omission, ...]:
    found = []
    mixing = [n for n, m in task.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if task.mode is Mode.TRAIN and mixing:
        found.append(
            Omission(
                mixing[0],
                "BatchNorm in train mode mixes examples, so that none has a gradient of its own; "
                "measured in eval mode, with the statistics that were received",
            )
        )
    for name, module in task.module.named_modules():
        if name in measured or isinstance(module, nn.Embedding):
            continue
        own = [p for p in module.parameters(recurse=False) if p.ndim > 1]
        if isinstance(module, nn.Linear | Convolution) and holds_weights(module):
            found.append(Omission(name, "is not called as a module in the forward pass, so that it cannot be watched"))
        elif own:
            kind = type(module).__name__
            found.append(Omission(name, f"a {kind} holds weights itself; only linear layers and convolutions are"))
    return tuple(found)


@dataclass(eq=False)
class _Watch:
    """Hooks' notebook of one layer."""

    output: Tensor | None = None
    inputs: Tensor | None = None
    squares: Tensor | None = None


def _some(task: Task, inputs: Float[Tensor, "n *shape"], labels: Tensor) -> Drives:
    """Drives of examples that fit into memory together."""
    with torch.enable_grad(), _watched(task.module) as watches:
        x = inputs.detach().clone().requires_grad_()
        logits, _ = task.logits(task.parameters, task.buffers, x)
        answer = logits.detach().clone().requires_grad_()
        losses = torch.stack([task.loss_of(answer[i : i + 1], labels[i : i + 1]) for i in range(len(x))])
        residual = torch.autograd.grad(losses.sum(), answer)[0]
        heads = {name for name, watch in watches.items() if watch.output is logits}
        length = residual.norm(dim=1)
        unit = (residual / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None]).nan_to_num(0.0, 0.0, 0.0)
        torch.autograd.grad(logits, x, unit, allow_unused=True)
    layers = []
    finite = logits.detach().isfinite().all(1) & losses.detach().isfinite()
    for name, watch in watches.items():
        if watch.output is None or watch.inputs is None:
            continue
        module = task.module.get_submodule(name)
        wide = watch.output.shape[-1 if isinstance(module, nn.Linear) else 1]
        # A layer whose output reaches no answer gets no gradient at all.
        squares = watch.squares if watch.squares is not None else x.new_zeros(len(x), wide)
        finite &= squares.isfinite().all(1) & watch.inputs.isfinite()
        rows = squares.sqrt().nan_to_num(0.0, 0.0, 0.0)
        is_linear = isinstance(module, nn.Linear)
        lengths = watch.inputs.sqrt().nan_to_num(0.0, 0.0, 0.0)
        layers.append(LayerDrive(name, is_linear, name in heads, rows, lengths))
    return Drives(tuple(layers), length.nan_to_num(), finite, ())


@contextmanager
def _watched(module: nn.Module) -> Iterator[dict[str, _Watch]]:
    watches: dict[str, _Watch] = {}
    handles: list[RemovableHandle] = []

    def watch(layer: nn.Module, name: str) -> None:
        axis = -1 if isinstance(layer, nn.Linear) else 1

        def after(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen = watches.setdefault(name, _Watch())
            seen.output = output
            lengths = given[0].detach().flatten(1).square().sum(1)
            seen.inputs = lengths if seen.inputs is None else seen.inputs + lengths
            if not output.requires_grad or output.shape[0] != given[0].shape[0]:
                return

            def keep(gradient: Tensor) -> None:
                squares = gradient.detach().movedim(axis, 1).square()
                squares = squares.flatten(2).sum(-1) if squares.ndim > 2 else squares
                seen.squares = squares if seen.squares is None else seen.squares + squares

            output.register_hook(keep)

        handles.append(layer.register_forward_hook(after))

    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | Convolution) and holds_weights(layer):
            watch(layer, name)
    try:
        yield watches
    finally:
        for handle in handles:
            handle.remove()
