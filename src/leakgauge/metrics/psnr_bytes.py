"""PSNR after rounding to bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.metric import MORE, prepare
from leakgauge.metrics.pixel import PSNR_CAP
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec


@METRICS.register("psnr_bytes")
@dataclass(frozen=True, kw_only=True)
class PSNRBytes:
    """10·log₁₀(255² / MSE) in dB of images as bytes, per image. For comparison with ROG only.

    Source: ROG's evaluation code: clamped, times 255, rounded. Differences below half a level vanish: images that
    agree as bytes score `PSNR_CAP`; above that it is `PSNR` within the rounding. Range [0, 300].
    """

    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "psnr_bytes"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, PSNR_CAP)
    needs_truth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures."""
        return spec.is_image

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        pair = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        a, b = (((t - self.low) / self.data_range * 255).round() for t in pair)
        mse = (a - b).square().reshape(len(a), -1).mean(1) if len(a) else a.new_zeros(0)
        ratio = torch.where(mse > 0, 255.0**2 / mse.clamp_min(1e-300), torch.inf)
        return (10 * ratio.log10()).clamp(0, PSNR_CAP)
