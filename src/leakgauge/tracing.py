"""One way to look inside a network: its linear layers, their inputs, its curvature."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import grad

from leakgauge.defenses.representations import mean_draws
from leakgauge.step.training import inputs_of
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer by its parameters' names in the update; `bias` is `None` where it has none."""

    name: str
    weight: str
    bias: str | None

    def of(self, tensors: Tensors) -> tuple[Float[Tensor, "outputs features"], Float[Tensor, " outputs"] | None]:
        """Weight and bias out of named tensors, in float64 on the CPU."""
        bias = None if self.bias is None else tensors[self.bias].detach().cpu().double()
        return tensors[self.weight].detach().cpu().double(), bias

    def features(
        self, task: Task, inputs: Float[Tensor, "n *shape"]
    ) -> tuple[Float[Tensor, "n features"], Float[Tensor, "n outputs"]]:
        """What enters the layer for raw inputs, and the logits; in the task's own precision."""
        calm = without_dropout(task)
        with inputs_of(calm.module, [self.name]) as given:
            logits, _ = calm.logits(calm.parameters, calm.buffers, inputs)
        return given[self.name], logits


def without_dropout(task: Task) -> Task:
    """The same task on a module of its own with dropout off and bottlenecks at their mean: nothing is drawn."""
    module = task.module_copy()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    return replace(task, module=module, buffers={**task.buffers, **mean_draws(task)}, stochastic=False)


def linear_layers(task: Task) -> list[LinearLayer]:
    """All `nn.Linear` layers whose weight the update carries."""
    found = []
    for name, module in task.module.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.Linear) and f"{prefix}weight" in task.parameters:
            bias = f"{prefix}bias" if f"{prefix}bias" in task.parameters else None
            found.append(LinearLayer(name, f"{prefix}weight", bias))
    return found


def input_layers(task: Task, generator: torch.Generator, sent: Tensors | None = None) -> list[LinearLayer]:
    """Linear layers that receive the flattened model input itself; of an update's, those that it moved first.

    A random probe is sent through the model: a layer qualifies when what reaches it is the probe, to rounding.
    """
    like = next(iter(task.parameters.values()))
    probe = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * probe
    flat = task.data.normalise(raw).flatten(1)
    rounding = 1e-5 * float(flat.abs().max())
    with torch.no_grad(), inputs_of(task.module, [layer.name for layer in linear_layers(task)]) as reached:
        task.passed(task.parameters, task.buffers, raw)

    def is_input(name: str) -> bool:
        got = reached.get(name)
        return got is not None and got.shape == flat.shape and bool(torch.allclose(got, flat, atol=rounding))

    found = [layer for layer in linear_layers(task) if is_input(layer.name)]
    return found if sent is None else sorted(found, key=lambda layer: not bool(sent[layer.weight].any()))


ENTRIES = 8 * 3 * 32 * 32
"""Most input values that `second_derivative_gap` works on: fewer examples where one is large."""


def second_derivative_gap(task: Task, generator: torch.Generator, *, examples: int = 8, step: float = 1e-2) -> float:
    """Relative gap between the derivative of the input gradient along a direction and its finite difference, float64.

    At most 1e-2 on sigmoid and tanh networks; of order one on ReLU and max-pool ones, whose kinks the finite
    difference crosses and the derivative does not see.
    """
    like = torch.empty((), dtype=torch.float64)
    task = task.to(like)
    least = 2 if task.mode is Mode.TRAIN else 1  # BatchNorm in train mode refuses one
    shape = (max(least, min(examples, ENTRIES // math.prod(task.data.shape))), *task.data.shape)
    x = task.data.low + task.data.range * torch.rand(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(task.data.classes, shape[:1], generator=generator)
    direction = torch.randn(shape, generator=generator, dtype=torch.float64) * task.data.range
    room = step * direction.abs()  # what looks categories up takes nothing beyond the range
    x = torch.minimum(torch.maximum(x, task.data.low + room), task.data.high - room)

    def slope(inputs: Tensor) -> Tensor:
        def loss(i: Tensor) -> Tensor:
            model = torch.Generator().manual_seed(0) if task.stochastic else None
            return task(task.parameters, task.buffers, Batch(i, labels), model)[0]

        return cast(Tensor, grad(loss)(inputs))

    exact = cast(Tensor, grad(lambda i: (slope(i) * direction).sum())(x))
    measured = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    scale = torch.maximum(exact.norm(), measured.norm()).clamp_min(1e-30)
    return float((exact - measured).norm() / scale)


def is_smooth(task: Task, generator: torch.Generator) -> bool:
    """Whether quasi-Newton methods may trust the network's curvature.

    A network with dropout in train mode is not: its loss changes from call to call. One that only adds noise to its
    features (a variational bottleneck) is measured at a fixed draw, as simulations hold it.
    """
    drops = any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 and m.training for m in task.module.modules())
    return not drops and second_derivative_gap(task, generator) < 0.1
