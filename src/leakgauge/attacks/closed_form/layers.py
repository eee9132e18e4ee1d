"""Which linear layer reads the input: found by type and by probing, never by position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.task import Task


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer by its parameters' names in the update; `bias` is `None` where it has none."""

    name: str
    weight: str
    bias: str | None


def linear_layers(task: Task) -> list[LinearLayer]:
    """All `nn.Linear` layers whose weight the update carries."""
    found = []
    for name, module in task.module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.Linear) and f"{prefix}weight" in task.parameters:
            bias = f"{prefix}bias" if f"{prefix}bias" in task.parameters else None
            found.append(LinearLayer(name, f"{prefix}weight", bias))
    return found


def input_layers(task: Task, generator: torch.Generator) -> list[LinearLayer]:
    """Linear layers that receive the flattened model input itself.

    A random probe is sent through the model: a layer qualifies when what reaches it is the probe.
    """
    like = next(iter(task.parameters.values()))
    probe = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * probe
    flat = task.data.normalise(raw).flatten(1)
    reached: dict[str, Tensor] = {}
    handles = []
    for layer in linear_layers(task):

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], name: str = layer.name) -> None:
            reached[name] = inputs[0].detach()

        handles.append(task.module.get_submodule(layer.name).register_forward_pre_hook(keep))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, raw)
    finally:
        for handle in handles:
            handle.remove()

    def is_input(name: str) -> bool:
        got = reached.get(name)
        return got is not None and got.shape == flat.shape and bool(torch.allclose(got, flat))

    return [layer for layer in linear_layers(task) if is_input(layer.name)]
