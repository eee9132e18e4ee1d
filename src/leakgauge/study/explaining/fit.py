"""How far a simulated update is from a captured one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class Fit:
    """One comparison.

    Attributes:
        cosine: between simulated and captured, −1 to 1.
        norm: ‖simulated‖ / ‖captured‖.
    """

    cosine: float
    norm: float

    @property
    def share(self) -> float:
        """The cosine, times the smaller norm over the larger: 1 where both are equal."""
        larger = max(self.norm, 1 / self.norm) if self.norm > 0 else math.inf
        return self.cosine / larger if math.isfinite(larger) else 0.0

    @staticmethod
    def between(simulated: Tensors, captured: Tensors) -> Fit:
        """Over all tensors together, in float64. One that is not finite fits nothing."""
        a, b = (torch.cat([t[k].detach().double().flatten() for k in captured]) for t in (simulated, captured))
        size, other = float(a.norm()), float(b.norm())
        if not math.isfinite(size) or not size or not other:
            return Fit(0.0, math.inf if not math.isfinite(size) else 0.0)
        return Fit(float(a @ b) / size / other, size / other)


@dataclass(frozen=True)
class TensorFit:
    """The fit of one tensor, and its share of the captured update's squared norm."""

    name: str
    energy: float
    fit: Fit
