"""Is a network smooth? Measured on random inputs, so that kinks inside any code are seen."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.func import grad

from leakgauge.task import Batch, Task


def second_derivative_gap(task: Task, generator: torch.Generator, *, examples: int = 8, step: float = 1e-2) -> float:
    """Relative gap between the derivative of the input gradient along a direction and its finite difference, float64.

    At most 1e-2 on sigmoid and tanh networks; of order one on ReLU and max-pool ones, whose kinks the finite
    difference crosses and the derivative does not see.
    """
    like = torch.empty((), dtype=torch.float64)
    task = task.to(like)
    shape = (examples, *task.data.shape)
    x = task.data.low + task.data.range * torch.rand(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(task.data.classes, (examples,), generator=generator)
    direction = torch.randn(shape, generator=generator, dtype=torch.float64) * task.data.range

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
