"""New layers around the honest model, for servers that design the architecture."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.task import Task


def honest_module(task: Task) -> nn.Module:
    """A copy of the task's model with the task's own values; what is frozen stays frozen."""
    module = copy.deepcopy(task.module)
    values = {**task.parameters, **task.buffers}
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            tensor.copy_(values[name])
    return module


def linear(before: int, after: int, task: Task, generator: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """Weights N(0, scale²/before) from `generator` in the task's dtype and on its device, biases zero."""
    like = next(iter(task.parameters.values()))
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after, device=like.device, dtype=like.dtype)
    drawn = torch.randn((after, before), generator=generator) * (scale / math.sqrt(before))
    with torch.no_grad():
        layer.weight.copy_(drawn)
        layer.bias.zero_()
    return layer


def rebuilt(task: Task, module: nn.Module, name: str) -> Task:
    """The task with another architecture around the same data format, mode and loss."""
    with torch.random.fork_rng(devices=[]):  # a model with dropout draws when it is tried out
        made = Task.of(module, task.data, mode=task.mode, loss=task.loss, name=f"{name}({task.name})")
    return replace(made, stochastic=task.stochastic)


class Front(nn.Module):
    """x ↦ model(x + back(relu(first(x)))): a residual block on the flattened model input."""

    def __init__(self, first: nn.Linear, back: nn.Linear, model: nn.Module) -> None:
        super().__init__()
        self.first, self.back, self.model = first, back, model

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        moved: Tensor = self.back(self.first(x.flatten(1)).relu())
        return self.model(x + moved.view_as(x))  # type: ignore[no-any-return]


def fronted(task: Task, rows: int, name: str, generator: torch.Generator, scale: float = 0.1) -> Task:
    """The task behind a `Front` of `rows` units, random as yet; `scale` of its way back is small."""
    d = math.prod(task.data.shape)
    first, back = linear(d, rows, task, generator), linear(rows, d, task, generator, scale)
    return rebuilt(task, Front(first, back, honest_module(task)), name)
