"""How many entries a share of a tensor is."""

from __future__ import annotations

import math


def kept_entries(share: float, total: int) -> int:
    """⌈share · total⌉, where the product is an integer but for its rounding that integer: .07 of 100 is 7, not 8."""
    return math.ceil(share * total - 1e-9)
