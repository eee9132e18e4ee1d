"""How exact the numbers of an update are, by the format that they went through."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = (torch.bfloat16, torch.float16, torch.float32)
"""Coarsest first. What none of them holds without loss went through float64."""


@dataclass(frozen=True)
class Wire:
    """Rounding of one float format.

    Attributes:
        dtype: the coarsest format that holds every value that was sent.
        unit: half the distance from 1 to the next number: the relative rounding of a normal number.
        least: the absolute rounding of a number below the normal ones.
        computed: the format that the client is taken to compute in: float64 where it sends that, else float32.
    """

    dtype: torch.dtype

    @property
    def unit(self) -> float:
        return torch.finfo(self.dtype).eps / 2

    @property
    def least(self) -> float:
        info = torch.finfo(self.dtype)
        return float(info.smallest_normal) * info.eps / 2

    @property
    def computed(self) -> torch.dtype:
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    @staticmethod
    def of(*tensors: Tensor) -> Wire:
        """By the values, not by the container: float32 numbers in a float64 tensor are float32 numbers."""
        for dtype in FORMATS:
            if all(bool((t.to(dtype).to(t.dtype) == t).all()) for t in tensors):
                return Wire(dtype)
        return Wire(torch.float64)
