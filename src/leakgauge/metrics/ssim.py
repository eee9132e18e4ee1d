"""Structural similarity, in the three forms that papers report under one name."""

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
class _Images:
    data_range: float = 1.0
    low: float = 0.0

    smallest: ClassVar[int] = WINDOW

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures of one or three channels that the window fits into."""
        return spec.is_image and min(spec.shape[1:]) >= self.smallest

    def _pairs(self, x_hat: Tensor, x: Tensor) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"]]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or not self.defined_for(DataSpec(shape=tuple(a.shape[1:]), classes=2)):
            problem = f"is not defined for examples of shape {tuple(a.shape[1:])}"
            hint = f"give pictures of one or three channels, {self.smallest} pixels a side or more"
            raise InputError("ssim", problem, hint)
        return a, b

    def _windowed(self, a: Tensor, b: Tensor) -> tuple[float, float]:
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
class SSIM(_Images):
    """Mean SSIM over the whole map, per image and over its channels.

    Source: Wang et al., 2004: Gaussian window 11×11, σ 1.5, K₁ .01, K₂ .03, population covariances; computed by
    scikit-image with mirrored edges. Not cropped: at 32 px the crop would discard half of the image. Range [−1, 1].
    """

    name: ClassVar[str] = "ssim"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_truth: ClassVar[bool] = True

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = self._pairs(x_hat, x)
        return torch.tensor([self._windowed(p, q)[1] for p, q in zip(a, b, strict=True)], dtype=torch.float64)


@METRICS.register("ssim_cropped")
@dataclass(frozen=True, kw_only=True)
class SSIMCropped(_Images):
    """As `SSIM`, but the outer five pixels of the map are left out. For comparison only.

    Source: scikit-image's own mean, and torchmetrics before 1.5 (MKOR's evaluation). Range [−1, 1].
    """

    name: ClassVar[str] = "ssim_cropped"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_truth: ClassVar[bool] = True

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = self._pairs(x_hat, x)
        return torch.tensor([self._windowed(p, q)[0] for p, q in zip(a, b, strict=True)], dtype=torch.float64)


@METRICS.register("ssim_global")
@dataclass(frozen=True, kw_only=True)
class SSIMGlobal(_Images):
    """SSIM with the whole image as its one window, l·c·s of Y, Cr, Cb weighted .8, .1, .1. For comparison only.

    Source: ROG's evaluation code, on bytes (rounded after clamping), population moments, C₃ = C₂/2. It says
    little: a blur to a quarter of the resolution scores above .9. One channel counts as Y. Range [−1, 1].
    """

    name: ClassVar[str] = "ssim_global"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    needs_truth: ClassVar[bool] = True

    smallest: ClassVar[int] = 1

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = (self._planes(t) for t in self._pairs(x_hat, x))
        weights = a.new_tensor([0.8, 0.1, 0.1] if a.shape[1] == 3 else [1.0])
        return (self._one_window(a, b) * weights).sum(1)

    def _planes(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """Y, Cr, Cb as whole numbers 0 to 255."""
        grey = ((x - self.low) / self.data_range * 255).round()
        if x.shape[1] == 1:
            return grey
        red, _, blue = grey.unbind(1)
        luma = (grey * grey.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1)
        planes = torch.stack([luma, (red - luma) * 0.713 + 128, (blue - luma) * 0.564 + 128], 1)
        return planes.round().clamp(0, 255)

    @staticmethod
    def _one_window(a: Float[Tensor, "n c h w"], b: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c"]:
        c1, c2 = (K1 * 255) ** 2, (K2 * 255) ** 2
        mean_a, mean_b = a.mean((2, 3)), b.mean((2, 3))
        p, q = a - mean_a[..., None, None], b - mean_b[..., None, None]
        var_a, var_b, covariance = p.square().mean((2, 3)), q.square().mean((2, 3)), (p * q).mean((2, 3))
        both = (var_a * var_b).sqrt()
        luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
        contrast = (2 * both + c2) / (var_a + var_b + c2)
        structure = (covariance + c2 / 2) / (both + c2 / 2)
        return luminance * contrast * structure
