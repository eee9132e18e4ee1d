"""What MKOR's construction computes in a VGG: local maxima and minima on shifted grids; and images from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.servers.mkor.network import Stage
from leakgauge.task import DataSpec

CHUNK = 16
"""Images at a time: bounds memory at 224 px."""

WINDOW, SIGMA = 5, 10.0
"""Side and standard deviation of the release's smoothing, in pixels."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvolutionStep:
    """One convolution's share of the construction.

    Attributes:
        stage: the convolution.
        directions: each channel is written four times: as it is, and read one to the right, below, and both.
        reads: channels of the layer before; of the image for the first step.
        writes: channels of this layer. A copy writes its i-th from the i-th read; a four-direction layer with m
            reads writes number i + m·d from read i and direction d; the first writes the colours' maxima, then
            their minima.
    """

    stage: Stage
    directions: bool
    reads: Int[Tensor, " i"]
    writes: Int[Tensor, " o"]


@dataclass(frozen=True, eq=False, kw_only=True)
class PooledMap:
    """The feature map of crafted convolutions and max-pools.

    With u = (x − low)/range in [0, 1], a feature is the maximum over a region of u, or of 1 − u. Each bounds u in its
    region: u ≤ U = feature and u ≥ L = 1 − feature. Regions have the side of all pools together and lie on 4^I grids,
    shifted against each other by sums of the four-direction layers' shifts: 2^i pixels behind i pools by
    two, as the paper's text and its release have it; its Eq. (15) gives twice as much.

    Source: MKOR and its release. Differs: any depth, size and pool side; bounds go back through the layers, so that
    sizes which pools do not divide are exact too; and where minima are missing, the image is U and not the midpoint.

    Attributes:
        steps: in order of computation.
        minima: whether each colour's minima travel beside its maxima.
        flat_shape: (c, h, w) of what the first linear layer flattens.
        smooth: the release's 5×5 Gaussian smoothing (σ 10 px, edges replicated) of the midpoint; the paper has none.
    """

    steps: tuple[ConvolutionStep, ...]
    minima: bool
    flat_shape: tuple[int, int, int]
    data: DataSpec
    smooth: bool = True

    @property
    def remark(self) -> str:
        return "" if self.minima else "only maxima are read, for a layer is too narrow for minima beside them"

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Ordered by written channel, row and column."""
        cells = self.flat_shape[1] * self.flat_shape[2]
        return (self.steps[-1].writes[:, None] * cells + torch.arange(cells)).flatten()

    def bounds(
        self, features: Float[Tensor, "n f"]
    ) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"], Bool[Tensor, "n c h w"]]:
        """L and U of u, within [0, 1], and what any region that was seen covers."""
        colours, directions = self.data.shape[0], 4 ** sum(step.directions for step in self.steps)
        grid = features.reshape(len(features), directions, -1, *self.flat_shape[1:])
        upper = self._tightest(grid[:, :, :colours], torch.fmin)
        lower = self._tightest(1 - grid[:, :, colours:], torch.fmax) if self.minima else torch.zeros_like(upper)
        return lower.nan_to_num(nan=0.0).clamp(min=0), upper.nan_to_num(nan=1.0).clamp(max=1), ~upper.isnan()

    def _tightest(self, x: Float[Tensor, "n d c a b"], tighter: Tighter) -> Float[Tensor, "n c h w"]:
        """From a bound of each region that of each pixel, back through the layers; NaN bounds nothing."""
        x = x.flatten(1, 2)
        for step in reversed(self.steps):
            (height, width), side = step.stage.size, step.stage.pool
            x = x.repeat_interleave(side, 2).repeat_interleave(side, 3)
            x = F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]), value=torch.nan)
            if step.directions:
                own, right, below, both = x.chunk(4, 1)
                above = _unmoved(tighter(below, _unmoved(both, 3, tighter)), 2, tighter)
                x = tighter(tighter(own, _unmoved(right, 3, tighter)), above)
        return x

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        """The midpoint of the bounds (U without minima), smoothed, clamped, in the raw range.

        Quality is uneven: few regions cover the upper left, and cut ones the lower right. Averaged or noisy
        features may give L > U; the midpoint stays. Pixels that no region covers are mid-grey.
        """
        return torch.cat([self._images(part) for part in features.split(CHUNK)])

    def _images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        lower, upper, covered = self.bounds(features)
        estimate = (lower + upper) / 2 if self.minima else torch.where(covered, upper, 0.5)
        if self.smooth:
            estimate = smoothed(estimate)
        return self.data.low + self.data.range * estimate.clamp(0, 1)


Tighter = Callable[[Tensor, Tensor], Tensor]
"""The nearer of two bounds; a number where one of them is NaN."""


def _unmoved(x: Tensor, axis: int, tighter: Tighter) -> Tensor:
    """Bounds of what a four-direction layer moved along an axis, where it came from."""
    *_, edge = x.split(1, axis)
    back = torch.cat([torch.full_like(edge, torch.nan), x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    last = back.narrow(axis, x.shape[axis] - 1, 1)
    last.copy_(tighter(last, edge))
    return back


def smoothed(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """5×5 Gaussian of σ 10 px, almost a mean; edges replicated."""
    offsets = torch.arange(WINDOW).to(x) - WINDOW // 2
    row = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    kernel = torch.outer(row, row) / row.sum() ** 2
    wide = F.pad(x, (WINDOW // 2,) * 4, mode="replicate")
    return F.conv2d(wide, kernel.expand(x.shape[1], 1, WINDOW, WINDOW), groups=x.shape[1])
