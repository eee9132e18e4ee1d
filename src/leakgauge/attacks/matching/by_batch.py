"""One prior for a single example, another for several."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.priors import Prior


@dataclass(frozen=True, kw_only=True)
class ByBatch:
    """`one` for a batch of one example, `several` for more, as Qian & Hansen choose."""

    one: Prior
    several: Prior

    @property
    def needs_images(self) -> bool:
        """As either does."""
        return any(bool(getattr(part, "needs_images", False)) for part in (self.one, self.several))

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return (self.one if len(z) == 1 else self.several)(z)
