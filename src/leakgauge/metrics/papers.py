"""The papers' odd variants, under names of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.errors import require
from leakgauge.metrics.metric import LESS, MORE, prepare
from leakgauge.metrics.pixel import PSNR, PSNR_CAP
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec


@METRICS.register("l1")
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
    needs_truth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For all data."""
        return True

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        return (a - b).abs().reshape(len(a), -1).sum(1) if len(a) else a.new_zeros(0)


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


@METRICS.register("psnr_shifted")
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
    needs_truth: ClassVar[bool] = True

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
