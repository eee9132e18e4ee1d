"""Local optimisers as pure functions: gradient, parameters and state to the next parameters and state."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.errors import Checked, limit, limited, not_negative, positive, require
from leakgauge.registry import OPTIMISERS
from leakgauge.tensors import Tensors, map_tensors


@dataclass(frozen=True, eq=False)
class OptimiserState:
    """What an optimiser keeps between steps: how many it took, and running averages by name, none before the first."""

    steps: int = 0
    moments: dict[str, Tensors] = field(default_factory=dict)


class Optimiser(Checked, ABC):
    """One step of local training, differentiable in the gradient. One of one's own is a dataclass that inherits.

    Guarantees: a pure function of its arguments; ours equal the steps of the `torch.optim` classes of their names.
    """

    lr: float
    #: whether entries of one tensor are scaled unlike, so that no ratio of gradient entries is kept
    rescales_entries: ClassVar[bool] = False

    def with_rate(self, lr: float) -> "Optimiser":
        return replace(self, lr=lr)  # type: ignore[type-var]

    def without_decay(self) -> "Optimiser":
        return replace(self, weight_decay=0.0) if hasattr(self, "weight_decay") else self  # type: ignore[type-var]

    @abstractmethod
    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        """New parameters and new state."""


def linear_steps(optimiser: Optimiser, steps: int) -> tuple[tuple[float, ...], float] | None:
    """How far each step's gradient moves a parameter by the end, and its own value does; `None` where the optimiser is
    not linear in them.

    Found by running it, on one entry for each step and on sums of them.
    """
    generator = torch.Generator().manual_seed(0)
    basis = torch.eye(steps + 1, dtype=torch.float64)
    mixed = torch.randn((2, steps + 1), generator=generator, dtype=torch.float64) * torch.tensor([[1.0], [1e3]])
    cases = torch.cat([basis, mixed.to(basis)])
    given = {"p": cases, "q": cases * torch.tensor([3.0] * steps + [1.0])}
    start = {name: rows[:, -1] for name, rows in given.items()}
    parameters, state = start, OptimiserState()
    for step in range(steps):
        parameters, state = optimiser.step({name: rows[:, step] for name, rows in given.items()}, parameters, state)
    weights = (parameters["p"] - start["p"])[:-2]
    moved = all(torch.allclose(parameters[k] - start[k], rows @ weights, rtol=1e-9) for k, rows in given.items())
    return (tuple(weights[:steps].tolist()), float(weights[steps])) if moved else None


@OPTIMISERS.register("sgd")
@dataclass(frozen=True, kw_only=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum and weight decay, as ``torch.optim.SGD``."""

    lr: float = positive(0.01, "learning rate")
    momentum: float = limited(0.0, lambda share: 0 <= share < 1, "give a number in [0, 1)")
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = not_negative(0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.nesterov or (self.momentum > 0 and self.dampening == 0)
        require(fits, "nesterov", "needs momentum and no dampening", "set momentum > 0 and dampening: 0")

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        g, moments = gradient, state.moments
        if self.weight_decay:
            g = map_tensors(lambda gi, p: gi + self.weight_decay * p, g, parameters)
        if self.momentum:
            v = moments.get("momentum")
            v = g if v is None else map_tensors(lambda vi, gi: self.momentum * vi + (1 - self.dampening) * gi, v, g)
            g = map_tensors(lambda gi, vi: gi + self.momentum * vi, g, v) if self.nesterov else v
            moments = {"momentum": v}
        return map_tensors(lambda p, d: p - self.lr * d, parameters, g), OptimiserState(state.steps + 1, moments)


@OPTIMISERS.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(Optimiser):
    """Adam (Kingma and Ba, 2015) as ``torch.optim.Adam``; with `decoupled`, ``torch.optim.AdamW``.

    The first step moves every entry by about `lr` against the sign of its gradient, so that a delta of few steps
    carries little more than signs. Not a sum of gradients: no ratio of entries survives it.
    """

    lr: float = positive(0.001, "learning rate")
    #: decay of the first and second moment
    betas: tuple[float, float] = limited((0.9, 0.999), lambda two: all(0 <= b < 1 for b in two), "give two in [0, 1)")
    eps: float = positive(1e-8)  #: added to the root of the second moment
    weight_decay: float = not_negative(0.0)  #: of the gradient, or with `decoupled` of the parameters
    decoupled: bool = False  #: AdamW's weight decay (Loshchilov and Hutter, 2019)

    rescales_entries: ClassVar[bool] = True

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        (one, two), count = self.betas, state.steps + 1
        g = gradient
        if self.weight_decay and not self.decoupled:
            g = map_tensors(lambda gi, p: gi + self.weight_decay * p, g, parameters)
        nothing = map_tensors(torch.zeros_like, g)
        first = map_tensors(lambda m, gi: one * m + (1 - one) * gi, state.moments.get("exp_avg", nothing), g)
        second = map_tensors(lambda v, gi: two * v + (1 - two) * gi**2, state.moments.get("exp_avg_sq", nothing), g)
        shrink = self.lr * self.weight_decay if self.decoupled else 0.0

        def moved(p: Tensor, m: Tensor, v: Tensor) -> Tensor:
            size = self.lr / (1 - one**count)
            return (1 - shrink) * p - size * m / (root(v / (1 - two**count)) + self.eps)

        new = map_tensors(moved, parameters, first, second)
        return new, OptimiserState(count, {"exp_avg": first, "exp_avg_sq": second})


@OPTIMISERS.register("adamw")
def adamw(
    *, lr: float = 0.001, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.01
) -> Adam:
    """AdamW (Loshchilov and Hutter, 2019) as ``torch.optim.AdamW``: Adam with decoupled weight decay."""
    return Adam(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, decoupled=True)


@dataclass(frozen=True, kw_only=True)
class CosineRate(Checked):
    """A factor of the learning rate that falls from 1 to `least` along half a cosine, as
    ``torch.optim.lr_scheduler.CosineAnnealingLR`` with a call of it after every step; `cosine` is the steps of the
    fall."""

    cosine: int = field(metadata=limit(lambda steps: steps > 0, "give a number of steps"))
    least: float = limited(0.0, lambda share: 0 <= share <= 1, "give a factor from 0 to 1")

    __pydantic_config__: ClassVar = {"extra": "forbid"}  # a plan's mistake is told


@dataclass(frozen=True, kw_only=True)
class RateSchedule(Optimiser):
    """An optimiser whose learning rate has a factor for each step: the last of a list holds for all later ones."""

    optimiser: Optimiser
    schedule: CosineRate | tuple[float, ...]

    def factor(self, step: int) -> float:
        """Of the learning rate at a step, counted from 0."""
        if not isinstance(fall := self.schedule, CosineRate):
            return fall[min(step, len(fall) - 1)]
        return fall.least + (1 - fall.least) * (1 + math.cos(math.pi * min(step / fall.cosine, 1))) / 2

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        rate = self.optimiser.lr * self.factor(state.steps)
        if rate > 0:
            return self.optimiser.with_rate(rate).step(gradient, parameters, state)
        return parameters, self.optimiser.step(gradient, parameters, state)[1]  # moments go on where nothing moves


def root(v: Tensor) -> Tensor:
    """√v with derivative 0 at v = 0, where an entry has never had a gradient."""
    zero = v == 0
    return torch.where(zero, torch.zeros_like(v), torch.where(zero, torch.ones_like(v), v).sqrt())
