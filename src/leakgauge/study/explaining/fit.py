"""How far a simulated update is from a captured one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakgauge.tensors import BLOCK, Tensors


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

    @property
    def left(self) -> float:
        """‖simulated − captured‖ / ‖captured‖."""
        return math.sqrt(max(self.norm**2 + 1 - 2 * self.cosine * self.norm, 0.0))

    @staticmethod
    def of(simulated: float, captured: float, inner: float) -> Fit:
        """From the squared norms and the inner product. One that is not finite fits nothing."""
        size, other = math.sqrt(simulated), math.sqrt(captured)
        if not math.isfinite(size) or not size or not other:
            return Fit(0.0, math.inf if not math.isfinite(size) else 0.0)
        return Fit(inner / size / other, size / other)

    @staticmethod
    def between(simulated: Tensors, captured: Tensors, mean: Tensors | None = None) -> Fit:
        """Over all tensors together, in float64, of both less `mean`: a block at a time, without a copy of either."""
        return Fit.of(*products(simulated, captured, mean))


def products(a: Tensors, b: Tensors, mean: Tensors | None = None) -> tuple[float, float, float]:
    """‖a‖², ‖b‖² and a·b over the tensors of `b`, in float64, of both less `mean`."""
    found = [0.0, 0.0, 0.0]
    for name in b:
        for blocks in zip(*(t[name].detach().flatten().split(BLOCK) for t in (a, b, mean or a)), strict=True):
            x, y, m = (block.double() for block in blocks)
            x, y = (x, y) if mean is None else (x - m, y - m)
            found = [total + float(v) for total, v in zip(found, (x @ x, y @ y, x @ y), strict=True)]
    return found[0], found[1], found[2]


@dataclass(frozen=True)
class TensorFit:
    """The fit of one tensor, and its share of the captured update's squared norm."""

    name: str
    energy: float
    fit: Fit
