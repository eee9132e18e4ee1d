"""How precisely an update was sent, told from its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

COARSE = (torch.bfloat16, torch.float16, torch.float32)
"""Float types that an update may have passed through, whatever type it is stored in."""


@dataclass(frozen=True)
class Rounding:
    """A bound on what rounding did to one tensor: |sent − meant| ≤ relative · |sent| + absolute, entry by entry.

    Attributes:
        relative: unit roundoff u = ε/2 of the float type: a normal number is rounded by at most u times itself.
        absolute: half the smallest subnormal, which bounds the rounding of what lies below the normal range.
    """

    relative: float
    absolute: float

    def of(self, sent: Tensor) -> Tensor:
        """The bound of every entry."""
        return self.relative * sent.abs() + self.absolute


def rounding(sent: Tensor) -> Rounding:
    """The rounding of the coarsest float types that hold every value of `sent`.

    Told from the values, not from the type they are stored in: an update that travelled in float16 and was stored in
    float64 is as rounded as before. Where several types would do (few values, or only powers of two), the larger of
    their bounds hold. A tensor that was scaled after rounding fits no coarse type; its bound is then too small, and a
    certificate that checks residuals against it fails.
    """
    types = [kind for kind in COARSE if bool((sent.to(kind).to(sent.dtype) == sent).all())] or [sent.dtype]
    return Rounding(
        max(torch.finfo(kind).eps / 2 for kind in types),
        max(torch.finfo(kind).smallest_normal * torch.finfo(kind).eps / 2 for kind in types),
    )
