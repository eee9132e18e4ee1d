"""The contract of a score, the preparation that all of them share, and the scores of pixels: MSE, PSNR and SSIM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from skimage.metrics import structural_similarity
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec

MORE, LESS = "more leakage", "less leakage"


@runtime_checkable
class Metric(Protocol):
    """A score per example.

    Guarantees: one finite number an example, which depends on that example and its truth alone, never on
    the rest of the batch; both are clamped to [low, low + data_range] first; the order of examples
    is the caller's (see `assign`). Registered constructors take `data_range` and `low`.

    Attributes:
        name: as in plans and reports.
        higher_means: "more leakage" or "less leakage".
        range: the least and the greatest value.
        needs_truth: whether it compares with the true example.
    """

    name: ClassVar[str]
    higher_means: ClassVar[str]
    range: ClassVar[tuple[float, float]]
    needs_truth: ClassVar[bool]

    def defined_for(self, spec: DataSpec) -> bool:
        """Whether the score has a meaning for such data; where not, reports leave it empty."""
        ...

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]: ...


def prepare(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."], *, data_range: float, low: float
) -> tuple[Float[Tensor, "n ..."], Float[Tensor, "n ..."]]:
    """Both in float64 on the CPU, clamped to the data's range. Entries that are not a number become the
    middle of the range, as they say nothing.

    Raises:
        InputError: the shapes differ.
    """
    shapes = f"{tuple(x_hat.shape)} for truth of shape {tuple(x.shape)}"
    require(x_hat.shape == x.shape, "x_hat", f"has shape {shapes}", "assign reconstructions to the truth first")
    return clamped(x_hat, data_range=data_range, low=low), clamped(x, data_range=data_range, low=low)


def clamped(x: Float[Tensor, "n ..."], *, data_range: float, low: float) -> Float[Tensor, "n ..."]:
    """See `prepare`."""
    values = x.detach().to("cpu", torch.float64)
    values = torch.where(values.isnan(), low + data_range / 2, values)
    return values.clamp_(low, low + data_range)


PSNR_CAP = 300.0
"""dB of an exact recovery: reports hold no infinity. It stands for a root mean squared error of 1e-15 of the range."""


def is_exact(psnr: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which PSNR scores stand at the cap."""
    return psnr >= PSNR_CAP


def decibels(mse: Float[Tensor, " n"], peak: Float[Tensor, " n"] | float) -> Float[Tensor, " n"]:
    power = torch.as_tensor(peak, dtype=mse.dtype).square().expand_as(mse)
    # Both floors keep 0/0 and log 0 away: an exact image is at the cap, a black peak at its negative.
    ratio = torch.where(mse > 0, power / mse.clamp_min(1e-300), torch.inf)
    return (10 * ratio.log10()).clamp(-PSNR_CAP, PSNR_CAP)


@dataclass(frozen=True, kw_only=True)
class Pixelwise:
    data_range: float = 1.0
    low: float = 0.0

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For all data."""
        return True

    def errors(self, x_hat: Tensor, x: Tensor) -> tuple[Float[Tensor, " n"], Tensor]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        mse = (a - b).square().reshape(len(a), -1).mean(1) if len(a) else a.new_zeros(0)
        return mse, b


@METRICS.register("mse")
@dataclass(frozen=True, kw_only=True)
class MSE(Pixelwise):
    """Mean squared error per example, in squared units of the data. Range [0, data_range²]."""

    name: ClassVar[str] = "mse"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))
    needs_truth: ClassVar[bool] = True

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        return self.errors(x_hat, x)[0]


@METRICS.register("psnr")
@dataclass(frozen=True, kw_only=True)
class PSNR(Pixelwise):
    """10·log₁₀(data_range² / MSE) in dB, per example, after clamping to the data's range.

    Never pooled over a batch before the logarithm and never summed. Range [0, 300]: an error of zero
    scores `PSNR_CAP`, see `is_exact`.
    """

    name: ClassVar[str] = "psnr"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, PSNR_CAP)
    needs_truth: ClassVar[bool] = True

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        return decibels(self.errors(x_hat, x)[0], self.data_range)


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
