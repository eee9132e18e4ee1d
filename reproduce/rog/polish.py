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


@dataclass(frozen=True, kw_only=True)
class EqualiseHistogram(Polish):
    """Each value becomes the share of its channel's pixels that are smaller, ties in the middle, in the data's range.

    Source: ROG, optional after signSGD, without a definition; this is the exact equalisation, without bins: the
    sorted values of a channel without ties are evenly spread. A flat channel becomes mid-grey.
    Known failure: pictures whose true histogram is far from even (a dark sky) lose by it.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self.high > self.low, "high", f"is {self.high}", "give more than low")

    def __call__(
        self, x: Float[Tensor, "n c h w"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n c h w"]:
        del labels
        flat = x.flatten(2).contiguous()
        ordered = flat.sort(2).values
        below = torch.searchsorted(ordered, flat)
        up_to = torch.searchsorted(ordered, flat, right=True)
        share = (below + up_to).to(x) / (2 * flat.shape[2])
        return (self.low + (self.high - self.low) * share).view_as(x)
