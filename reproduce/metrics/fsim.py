"""Feature similarity: where edges lie, how steep they are, and their colours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import MORE, prepare
from leakgauge.task import DataSpec

SCALES, ORIENTATIONS = 4, 4
SHORTEST, RATIO, BANDWIDTH = 6.0, 2.0, 0.55
"""Of the log-Gabor filters: shortest wavelength in pixels, factor from scale to scale, σ over centre frequency."""
SPREAD = math.pi / ORIENTATIONS / 1.2
"""Standard deviation of a filter's angle."""
NOISE, RESCALE = 2.0, 1.7
"""Standard deviations above the mean noise energy that count as signal, and the divisor of the released code."""
T1, T2, T3, T4, LAMBDA = 0.85, 160.0, 200.0, 200.0, 0.03
"""Stabilisers for phase congruency, gradient, I and Q on a scale of 0 to 255, and the weight of colour."""
YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
SMALLEST = 8
"""Least side of a picture in pixels."""


@dataclass(frozen=True, kw_only=True)
class FSIM:
    """FSIM of grey pictures, FSIMc of coloured ones: Σ S·PCₘ / Σ PCₘ with S = S_pc·S_g·(abs(S_i·S_q))^.03.

    S_x = (2ab + T)/(a² + b² + T) of the two pictures' phase congruency (pc), Scharr gradient (g), I and Q;
    PCₘ is the larger phase congruency. Pictures of 384 px and more are averaged down to about 256 first.

    Source: Zhang et al., IEEE TIP 2011, with the constants of the released code. CI-Net's evaluation takes it from
    piq 0.8, whose value this is of the transposed pictures, to rounding: piq lays the filters on the axes the other
    way round, which matters at the highest frequency of even sides alone and shows in the fifth digit.
    Two pictures without any feature are compared everywhere alike. The longest wavelength, 48 px, says little of
    pictures of 32 px.
    Range [0, 1].
    """

    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "fsim"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    def defined_for(self, spec: DataSpec) -> bool:
        """For pictures of one or three channels, 8 pixels a side or more."""
        return spec.is_image and min(spec.shape[1:]) >= SMALLEST

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or not self.defined_for(DataSpec(shape=tuple(a.shape[1:]), classes=2)):
            problem = f"is not defined for examples of shape {tuple(a.shape[1:])}"
            hint = f"give pictures of one or three channels, {SMALLEST} px or more a side"
            raise InputError(self.name, problem, hint)
        return _score(self._planes(a), self._planes(b)) if len(a) else a.new_zeros(0)

    def _planes(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n p h w"]:
        """Y, I, Q (or grey) on 0 to 255, averaged down."""
        bytes_ = (x - self.low) / self.data_range * 255
        factor = max(1, round(min(x.shape[-2:]) / 256))
        small = F.avg_pool2d(bytes_, factor)
        return small if x.shape[1] == 1 else torch.einsum("pc,nchw->nphw", small.new_tensor(YIQ), small)


def _score(a: Float[Tensor, "n p h w"], b: Float[Tensor, "n p h w"]) -> Float[Tensor, " n"]:
    one, other = phase_congruency(a[:, 0]), phase_congruency(b[:, 0])
    weight = torch.maximum(one, other)
    score = _similarity(one, other, T1) * _similarity(_steepness(a[:, 0]), _steepness(b[:, 0]), T2)
    if a.shape[1] == 3:
        colour = _similarity(a[:, 1], b[:, 1], T3) * _similarity(a[:, 2], b[:, 2], T4)
        score = score * colour.abs() ** LAMBDA
    total = weight.sum((1, 2))
    # Two pictures without any feature: no place weighs more than another.
    empty = total <= 1e-12
    plain = score.mean((1, 2))
    return torch.where(empty, plain, (score * weight).sum((1, 2)) / total.clamp_min(1e-12)).clamp(0, 1)


def _similarity(a: Tensor, b: Tensor, stabiliser: float) -> Tensor:
    return (2 * a * b + stabiliser) / (a.square() + b.square() + stabiliser)


def _steepness(grey: Float[Tensor, "n h w"]) -> Float[Tensor, "n h w"]:
    """Length of the Scharr gradient, zeros outside."""
    across = grey.new_tensor([[3, 0, -3], [10, 0, -10], [3, 0, -3]]) / 16
    kernels = torch.stack([across, across.T])[:, None]
    return F.conv2d(grey[:, None], kernels, padding=1).square().sum(1).sqrt()


def _axis(length: int) -> Float[Tensor, " length"]:
    """Frequencies in cycles a pixel, 0 first; odd lengths divide by length − 1, as the released code does."""
    steps = (torch.arange(length, dtype=torch.float64) + length // 2) % length - length // 2
    return steps / (length - length % 2)


def _filters(height: int, width: int) -> Float[Tensor, "orientations scales height width"]:
    """Log-Gabor filters in the frequency plane: a Gaussian in log radius by a Gaussian in angle, one-sided."""
    v, u = torch.meshgrid(_axis(height), _axis(width), indexing="ij")
    radius, angle = (u.square() + v.square()).sqrt(), torch.atan2(-v, u)
    low_pass = 1 / (1 + (radius / 0.45) ** 30)
    radius[0, 0] = 1.0
    rings = []
    for scale in range(SCALES):
        centre = 1 / (SHORTEST * RATIO**scale)
        ring = torch.exp(-((radius / centre).log() ** 2) / (2 * math.log(BANDWIDTH) ** 2)) * low_pass
        ring[0, 0] = 0.0
        rings.append(ring)
    fans = []
    for orientation in range(ORIENTATIONS):
        turned = angle - orientation * math.pi / ORIENTATIONS
        off = torch.atan2(turned.sin(), turned.cos())
        fans.append(torch.exp(-off.square() / (2 * SPREAD**2)))
    return torch.stack(fans)[:, None] * torch.stack(rings)


def phase_congruency(grey: Float[Tensor, "n h w"]) -> Float[Tensor, "n h w"]:
    """How far the local waves of all scales are in phase, 0 to 1, less what noise would give.

    Source: Kovesi, 1999, as FSIM's released code computes it: the noise is estimated from the median response
    of the finest filter of each orientation.
    """
    tiny = torch.finfo(grey.dtype).eps
    filters = _filters(*grey.shape[-2:]).to(grey)
    waves = torch.fft.ifft2(torch.fft.fft2(grey)[:, None, None] * filters)  # n, orientation, scale, h, w
    whole = waves.sum(2, keepdim=True)
    length = (whole.real.square() + whole.imag.square()).sqrt() + tiny
    even, odd = whole.real / length, whole.imag / length
    along = waves.real * even + waves.imag * odd
    aside = (waves.real * odd - waves.imag * even).abs()
    energy = (along - aside).sum(2) - _noise(waves, filters)[..., None, None]
    amplitude = waves.abs().sum((1, 2)) + tiny
    found: Tensor = (energy.clamp_min(0).sum(1) + tiny) / amplitude
    return found


def _noise(waves: Tensor, filters: Tensor) -> Float[Tensor, "n orientations"]:
    """Energy below which an orientation's response counts as noise (Rayleigh distributed)."""
    finest = waves[:, :, 0].abs().square().flatten(2).median(2).values / math.log(2)
    power = finest / filters[:, 0].square().sum((1, 2))
    shapes = torch.fft.ifft2(filters).real * math.sqrt(filters.shape[-1] * filters.shape[-2])
    squares = shapes.square().sum((1, 2, 3))
    # Σ over pairs of scales i < j of aᵢ·aⱼ.
    products = (shapes.sum(1).square().sum((1, 2)) - squares) / 2
    scale: Tensor = (power * (squares + 2 * products)).clamp_min(0).sqrt()
    return scale * (math.sqrt(math.pi / 2) + NOISE * math.sqrt(2 - math.pi / 2)) / RESCALE
