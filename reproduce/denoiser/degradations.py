"""What makes a sharp picture look as reconstructions do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require

MODES = ("nearest", "bilinear", "bicubic")


@runtime_checkable
class Degradation(Protocol):
    """Pictures to pictures of the same shape, values in [0, 1]; draws from `generator` alone."""

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]: ...


@dataclass(frozen=True, kw_only=True)
class Shrink:
    """Down by a factor and back up by bicubic interpolation, with noise in between: what ROG's canvas leaves.

    ROG searches for a small picture z and shows its bicubic enlargement, so the error of an imperfect search is
    made at the small size: x ↦ up(down(x) + σ n), n ~ N(0, I), σ ~ U(0, `sigma`) for each picture.

    Attributes:
        factors, weights: of the sides, and how often each is drawn. A factor of 1 leaves the size and adds the noise.
        modes: how it is shrunk, each as often: interpolation without a filter against aliasing, as the paper's
            "nearest, bilinear, bicubic", or, one time in two, with it (nearest has none).
        sigma: highest standard deviation of the noise at the small size.
    """

    factors: tuple[int, ...] = (4, 2, 1)
    weights: tuple[float, ...] = (0.8, 0.1, 0.1)
    modes: tuple[str, ...] = MODES
    sigma: float = 0.15

    def __post_init__(self) -> None:
        fits = len(self.factors) == len(self.weights) > 0 and min(self.factors) > 0
        require(
            fits, "factors", f"are {self.factors} with weights {self.weights}", "give as many positive ones of both"
        )
        require(min(self.weights) >= 0 < sum(self.weights), "weights", f"are {self.weights}", "give numbers ≥ 0")
        known = len(self.modes) > 0 and set(self.modes) <= set(MODES)
        require(known, "modes", f"are {self.modes}", f"give some of {', '.join(MODES)}")
        require(self.sigma >= 0, "sigma", f"is {self.sigma}", "give a standard deviation ≥ 0")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        height, width = images.shape[-2:]
        factor = self.factors[
            int(torch.multinomial(torch.tensor(self.weights, dtype=torch.float64), 1, generator=generator))
        ]
        mode = self.modes[int(torch.randint(len(self.modes), (), generator=generator))]
        filtered = mode != "nearest" and bool(torch.rand((), generator=generator) < 0.5)
        small = shrunk(images, factor, mode, filtered=filtered)
        noisy = small + _sigmas(len(images), 0.0, self.sigma, generator) * torch.randn(small.shape, generator=generator)
        return F.interpolate(noisy, (height, width), mode="bicubic", align_corners=False).clamp(0, 1)


def shrunk(
    images: Float[Tensor, "n c h w"], factor: int, mode: str = "bicubic", *, filtered: bool = True
) -> Float[Tensor, "n c k l"]:
    """The pictures at 1/`factor` of their sides."""
    size = [max(1, side // factor) for side in images.shape[-2:]]
    if mode == "nearest":
        return F.interpolate(images, size, mode=mode)
    return F.interpolate(images, size, mode=mode, align_corners=False, antialias=filtered)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """x ↦ x + σ n, n ~ N(0, I), σ ~ U(0, `sigma`) for each picture."""

    sigma: float = 0.05

    def __post_init__(self) -> None:
        require(self.sigma >= 0, "sigma", f"is {self.sigma}", "give a standard deviation ≥ 0")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        sigmas = _sigmas(len(images), 0.0, self.sigma, generator)
        return (images + sigmas * torch.randn(images.shape, generator=generator)).clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class Blur:
    """Convolution with a Gaussian of 7×7 px and standard deviation U(`least`, `most`) px, one for all pictures given;
    edges are repeated."""

    least: float = 0.1
    most: float = 0.8
    reach = 3

    def __post_init__(self) -> None:
        require(0 < self.least <= self.most, "least", f"is {self.least}, most {self.most}", "give 0 < least ≤ most")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        sigma = self.least + (self.most - self.least) * float(torch.rand((), generator=generator))
        line = torch.exp(-torch.arange(-self.reach, self.reach + 1.0).square() / (2 * sigma**2)).to(images)
        kernel = (line / line.sum()).repeat(images.shape[1], 1, 1)
        padded = F.pad(images, (self.reach,) * 4, mode="replicate")
        rows = F.conv2d(padded, kernel[:, :, None, :], groups=images.shape[1])
        return F.conv2d(rows, kernel[:, :, :, None], groups=images.shape[1])


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """All `parts`, in an order drawn for every `group` pictures of a batch.

    Source: ROG, section 4 ("random order of down-sampling, Gaussian noise and Gaussian blur"; the strengths are not
    given there, ours are the parts' defaults).
    """

    parts: tuple[Degradation, ...] = field(default_factory=lambda: (Shrink(), Noise(), Blur()))
    group: int = 8

    def __post_init__(self) -> None:
        require(bool(self.parts), "parts", "are none", "give at least one")
        require(self.group > 0, "group", f"is {self.group}", "give a positive number of pictures")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        made = []
        for some in images.split(self.group):
            degraded = some
            for k in torch.randperm(len(self.parts), generator=generator).tolist():
                degraded = self.parts[k](degraded, generator)
            made.append(degraded)
        return torch.cat(made) if made else images


def _sigmas(n: int, least: float, most: float, generator: torch.Generator) -> Float[Tensor, "n 1 1 1"]:
    return least + (most - least) * torch.rand((n, 1, 1, 1), generator=generator)
