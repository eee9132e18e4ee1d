"""What the Gaussian mechanisms share: their draws, and what their parameters must be."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from leakgauge.errors import require


def normal_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) in the shape of `t`, drawn in one precision, so that whoever knows the draw repeats it in any other."""
    return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)


def require_bound(norm: float) -> None:
    """A clipping norm C that bounds something."""
    require(0 < norm < math.inf, "norm", f"is {norm}", "give a finite norm: noise without a bound is not private")


def require_multiplier(value: float, *, otherwise: str) -> None:
    """A noise multiplier z; `otherwise` names the defence without noise."""
    fits = 0 < value < math.inf
    require(fits, "noise_multiplier", f"is {value}", f"give a positive number, or use {otherwise}")
