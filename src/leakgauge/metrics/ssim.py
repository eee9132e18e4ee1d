"""Structural similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from skimage.metrics import structural_similarity
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import MORE, prepare
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec

WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03
"""Side of the Gaussian window in pixels, its standard deviation, and the two stabilisers (Wang et al., 2004)."""


@dataclass(frozen=True, kw_only=True)
class ImagePairs:
    data_range: float = 1.0
    low: float = 0.0

    smallest: ClassVar[int] = WINDOW

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures of one or three channels that the window fits into."""
        return spec.is_image and min(spec.shape[1:]) >= self.smallest

    def pairs(self, x_hat: Tensor, x: Tensor) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"]]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or not self.defined_for(DataSpec(shape=tuple(a.shape[1:]), classes=2)):
            problem = f"is not defined for examples of shape {tuple(a.shape[1:])}"
            hint = f"give pictures of one or three channels, {self.smallest} pixels a side or more"
            raise InputError("ssim", problem, hint)
        return a, b

    def windowed(self, a: Tensor, b: Tensor) -> tuple[float, float]:
        """Mean over the cropped map and over the whole one."""
        cropped, full = structural_similarity(  # type: ignore[no-untyped-call]
            a.numpy(),
            b.numpy(),
            data_range=self.data_range,
            channel_axis=0,
            gaussian_weights=True,
            sigma=SIGMA,
            use_sample_covariance=False,
            full=True,
            K1=K1,
            K2=K2,
        )
        return float(cropped), float(full.mean())


@METRICS.register("ssim")
@dataclass(frozen=True, kw_only=True)
class SSIM(ImagePairs):
    """Mean SSIM over the whole map, per image and over its channels.

    Source: Wang et al., 2004: Gaussian window 11×11, σ 1.5, K₁ .01, K₂ .03, population covariances; computed by
    scikit-image with mirrored edges. Not cropped: at 32 px the crop would discard half of the image. Range [−1, 1].
    """

    name: ClassVar[str] = "ssim"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_truth: ClassVar[bool] = True

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = self.pairs(x_hat, x)
        return torch.tensor([self.windowed(p, q)[1] for p, q in zip(a, b, strict=True)], dtype=torch.float64)
