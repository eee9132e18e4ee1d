"""The papers' odd variants, under names of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.metric import K1, K2, LESS, MORE, MSE, PSNR, PSNR_CAP, SSIM, WINDOW, InRange, decibels, prepare
from leakgauge.task import DataSpec


@dataclass(frozen=True, kw_only=True)
class L1:
    """Σ|x̂ − x| per example, a sum over its entries and not a mean, in units of the data.

    Source: Qian & Hansen, Table 6f. Differs: both are clamped to the data's range, as for all our scores, so that a
    search without a box which has left it scores lower than in the paper. It grows with the number of entries: a
    photo of 3×32×32 that is wrong by 1 % of its range everywhere scores 31. Range [0, entries · data_range].
    """

    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "l1"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For all data."""
        return True

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        return (a - b).abs().reshape(len(a), -1).sum(1) if len(a) else a.new_zeros(0)


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


@dataclass(frozen=True, kw_only=True)
class PSNRShifted:
    """The best PSNR over all circular shifts of the reconstruction, in dB, per example. Range [0, 300].

    Convolutions with circular padding and pooling over the whole picture do not know where a picture begins, so an
    attack may find it displaced (Inverting Gradients' remark on translated reconstructions). The shift is that
    with the largest Σ_c x̂ ⋆ x, all of them at once by a Fourier transform.

    Never below `PSNR`, and the best of h·w tries: unrelated pictures gain too (a stranger's photo 9.7 → 10.7 dB over
    100 pairs of CIFAR-10 images, noise 8.6 → 8.7), so compare it with the same score of a null baseline, not with
    plain PSNR.
    """

    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "psnr_shifted"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, PSNR_CAP)

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For data with two spatial axes."""
        return len(spec.shape) == 3

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if not len(a):
            return a.new_zeros(0)
        moved = torch.stack(
            [p.roll((dy, dx), (1, 2)) for p, (dy, dx) in zip(a, best_shifts(a, b).tolist(), strict=True)]
        )
        plain = PSNR(data_range=self.data_range, low=self.low)
        # Rounding in the transform may miss an equal shift by a digit; standing still is never worse than that.
        return torch.maximum(plain(moved, b), plain(a, b))


def best_shifts(x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Int[Tensor, "n 2"]:
    """Rows and columns by which each x̂ must be rolled to be nearest to x.

    Σ(roll(x̂, s) − x)² is least where Σ roll(x̂, s)·x is largest, as rolling keeps the norm.
    """
    transforms = torch.fft.rfft2(x) * torch.fft.rfft2(x_hat).conj()
    product = torch.fft.irfft2(transforms.sum(1), s=x.shape[-2:])
    flat = product.flatten(1).argmax(1)
    return torch.stack([flat // x.shape[-1], flat % x.shape[-1]], 1)


@dataclass(frozen=True, kw_only=True)
class PSNRPeak(InRange):
    """PSNR with the true image's own peak in place of the data's range, in dB. For comparison with MKOR only.

    Source: MKOR's evaluation, torchmetrics 0.11 with `data_range=None`: peak = max(x, 0) − min(x, 0), per image.
    Scores dark images lower than `PSNR`. Range [−300, 300]; an all-black truth gives an end of it.
    """

    name: ClassVar[str] = "psnr_peak"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-PSNR_CAP, PSNR_CAP)

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        mse, truth = MSE(data_range=self.data_range, low=self.low)(x_hat, x), prepare(x, x, **vars(self))[0]
        flat = truth.reshape(len(truth), -1) if len(truth) else truth.new_zeros(0, 1)
        return decibels(mse, flat.amax(1).clamp_min(0) - flat.amin(1).clamp_max(0))


EDGE = WINDOW // 2


@dataclass(frozen=True, kw_only=True)
class SSIMCropped(SSIM):
    """As `SSIM`, but the outer five pixels of the map are left out. For comparison only.

    Source: scikit-image's own mean, and torchmetrics before 1.5 (MKOR's evaluation). Range [−1, 1].
    """

    name: ClassVar[str] = "ssim_cropped"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        inner = (found[:, EDGE:-EDGE, EDGE:-EDGE] for found in self.maps(x_hat, x))
        return torch.tensor([part.mean() for part in inner], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class SSIMGlobal(SSIM):
    """SSIM with the whole image as its one window, l·c·s of Y, Cr, Cb weighted .8, .1, .1. For comparison only.

    Source: ROG's evaluation code, on bytes (rounded after clamping), population moments, C₃ = C₂/2. It says
    little: a blur to a quarter of the resolution scores above .9. One channel counts as Y. Range [−1, 1].
    """

    name: ClassVar[str] = "ssim_global"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    smallest: ClassVar[int] = 1

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = (self._planes(t) for t in self.pairs(x_hat, x))
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
