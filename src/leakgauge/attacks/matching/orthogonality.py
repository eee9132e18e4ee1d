"""A prior that keeps the examples of a batch apart."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.registry import PRIORS


@PRIORS.register("orthogonality", needs="a batch of at least two")
@dataclass(frozen=True)
class Orthogonality:
    """weight · Σ_{k≠k'} (z_k · z_k')² over ordered pairs, so that each pair counts twice; in normalised units.

    Source: Qian & Hansen, Eq. 3. One example has no pair and costs nothing.

    It wants different examples, and real ones are not orthogonal: on raw pictures in [0, 1], which have no
    negative values, it is large at the truth (about 8 000 for four digits, against a data term near 0.01). With
    the paper's weight of 0.1 the truth is no minimum until the weight has decayed; see `StepDecay`.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        flat = z.flatten(1)
        products = (flat @ flat.T).square()
        return self.weight * (products.sum() - products.diagonal().sum())
