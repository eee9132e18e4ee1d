"""ROG's plain post-processing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.matching.parts import Polish
from leakgauge.errors import require


@dataclass(frozen=True, kw_only=True)
class Clamp(Polish):
    """Into the data's range."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self.high > self.low, "high", f"is {self.high}", "give more than low")

    def __call__(
        self, x: Float[Tensor, "n *shape"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n *shape"]:
        del labels
        return x.clamp(self.low, self.high)


@dataclass(frozen=True)
class MaxNormalise(Polish):
    """x / max|x| of each example; an example of zeros stays.

    Source: ROG, for signSGD: signs do not tell the contrast of a picture, only its pattern.
    """

    def __call__(
        self, x: Float[Tensor, "n *shape"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n *shape"]:
        del labels
        largest = x.abs().flatten(1).amax(1).view(-1, *([1] * (x.ndim - 1)))
        return x / torch.where(largest > 0, largest, 1)
