"""What an attacker believes about data before seeing the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.registry import PRIORS


@runtime_checkable
class Prior(Protocol):
    """Weighted penalty on a batch in model-input (normalised) units → scalar, usable under vmap."""

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]: ...


@PRIORS.register("none")
@dataclass(frozen=True)
class NoPrior:
    """No penalty."""

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return z.new_zeros(())


@PRIORS.register("tv", needs="data with two spatial axes")
@dataclass(frozen=True)
class TotalVariation:
    """weight · (mean|∂x| + mean|∂y|): anisotropic, a mean over all elements, in normalised units.

    Source: Inverting Gradients as its authors' code defines it; the paper says only "TV".

    Attributes:
        weight: the papers' α.
        smoothing: ε in √(∂² + ε), which makes it twice differentiable for quasi-Newton methods; 0 is `|∂|`.
    """

    weight: float
    smoothing: float = 0.0

    needs_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")
        require(self.smoothing >= 0, "smoothing", f"is {self.smoothing}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n c h w"]) -> Float[Tensor, ""]:
        if not self.weight:
            return z.new_zeros(())
        dy = z[..., 1:, :] - z[..., :-1, :]
        dx = z[..., :, 1:] - z[..., :, :-1]
        return self.weight * (self._mean(dx) + self._mean(dy))

    def _mean(self, d: Tensor) -> Float[Tensor, ""]:
        if not d.numel():  # a side of one, as a recording of shape (1, 1, length) has
            return d.sum()
        return (d.square() + self.smoothing).sqrt().mean() if self.smoothing else d.abs().mean()
