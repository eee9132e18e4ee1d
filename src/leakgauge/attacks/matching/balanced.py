"""A prior whose pull is a share of the data term's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad

from leakgauge.attacks.matching.parts import Prior
from leakgauge.errors import require
from leakgauge.registry import PRIORS
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@PRIORS.register("balanced")
@dataclass(frozen=True, kw_only=True)
class Balanced(Prior):
    """`prior`, with a share of the data term's pull.

    Pull is the norm of the slope, of each variable of the canvas on its own. Whatever the network and however near the
    end, the prior has a say of the same size at every step, where a constant weight suits one network and one
    distance. What a `Scheduled` prior asks for is the least. The objective that is reported, and by which the best
    point is chosen, is the data term alone; so this suits minimisers that do not compare values with slopes (Adam, not
    a line search).

    Attributes:
        share: of the norm of the data term's slope.
    """

    prior: Prior
    share: float = 0.2

    def __post_init__(self) -> None:
        require(self.share > 0, "share", f"is {self.share}", "give a positive number")

    def refuses(self, data: DataSpec) -> str:
        """As the prior does."""
        return self.prior.refuses(data)

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.prior(z)


@dataclass(frozen=True, eq=False)
class Pull:
    """A prior that pulls beside the objective: its slope is added with the factor in force, or with as much as makes
    its norm `share` of the objective's, whichever is more.

    Attributes:
        prior: variables of one restart → penalty.
        share: see `Balanced`.
    """

    prior: Callable[[Tensors], Tensor]
    share: float

    def added(self, variables: Tensors, slopes: Tensors, factor: Tensor) -> Tensors:
        """The slopes of one restart with those of the prior."""
        own = grad(self.prior)(variables)
        return {name: slope + self._weight(slope, own[name], factor) * own[name] for name, slope in slopes.items()}

    def _weight(self, slope: Tensor, own: Tensor, factor: Tensor) -> Tensor:
        tiny = torch.finfo(own.dtype).tiny
        size = slope.abs().amax().clamp_min(tiny)  # squares of small slopes would vanish
        balance = self.share * size * (slope / size).norm() / own.norm().clamp_min(tiny**0.5)
        return torch.maximum(balance, factor)
