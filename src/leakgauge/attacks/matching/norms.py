"""Priors on the length of the examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.registry import PRIORS


@PRIORS.register("squared-norm")
@dataclass(frozen=True)
class SquaredNorm:
    """weight · ‖z‖²_F, summed over the whole batch, in normalised units.

    Source: Qian & Hansen, Eq. 2, for a batch of one. The paper prints the norm without the square, while its
    Eq. 3 squares: see `Norm` for the other reading.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.weight * z.square().sum()


@PRIORS.register("norm")
@dataclass(frozen=True)
class Norm:
    """weight · ‖z‖_F of the whole batch, in normalised units. It has a kink at zero, where its gradient is zero here.

    Source: Qian & Hansen, Eq. 2 as printed.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.weight * cast(Tensor, torch.linalg.vector_norm(z))
