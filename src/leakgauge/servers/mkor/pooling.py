"""What MKOR's construction computes in a VGG: local maxima and minima on shifted grids; and images from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
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
class ConvolutionLayout:
    """All steps, in order of computation.

    Attributes:
        colours: channels of the image.
        minima: whether each colour's minima travel beside its maxima.
        flat_shape: (c, h, w) of what the first linear layer flattens.
    """

    steps: tuple[ConvolutionStep, ...]
    colours: int
    minima: bool
    flat_shape: tuple[int, int, int]

    @property
    def directions(self) -> int:
        """Number of four-direction layers, I."""
        return sum(step.directions for step in self.steps)

    @property
    def sources(self) -> int:
        """Channels that the first layer writes: colours, twice with minima."""
        return self.colours * (2 if self.minima else 1)

    @property
    def shifts(self) -> tuple[int, ...]:
        """Pixels by which each four-direction layer moves: the product of the pools before it.

        2^i after i pools by two. The paper's text and its release agree on this; its Eq. (15) gives twice as much.
        """
        pools = [step.stage.pool for step in self.steps]
        return tuple(prod(pools[:i]) for i, step in enumerate(self.steps) if step.directions)

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Places in the flat input of the first linear layer, ordered (written channel, row, column)."""
        cells = self.flat_shape[1] * self.flat_shape[2]
        return (self.steps[-1].writes[:, None] * cells + torch.arange(cells)).flatten()


@dataclass(frozen=True, eq=False, kw_only=True)
class PooledMap:
    """The feature map of crafted convolutions and max-pools.

    With u = (x − low)/range in [0, 1], a feature is `scale` · max over a region of (u − floor)₊, or of
    (ceiling − u)₊. With biases floor = 0 and ceiling = 1, so the second is 1 − min u. Each bounds u in its region:
    u ≤ U = floor + feature/scale and u ≥ L = ceiling − feature/scale. Regions have the side of all pools together
    and lie on 4^I grids, shifted against each other by sums of the four-direction layers' shifts.

    Source: MKOR and its release. Differs: any depth, size and pool side; regions are found by sending
    intervals through the layers, so that sizes which pools do not divide are exact too; and where minima are
    missing, the image is U and not the midpoint.

    Attributes:
        floor, ceiling: per colour.
        smooth: the release's 5×5 Gaussian smoothing (σ 10 px, edges replicated) of the midpoint; the paper has none.
        remark: what the construction had to give up, for the report.
    """

    layout: ConvolutionLayout
    data: DataSpec
    floor: Float[Tensor, " c"]
    ceiling: Float[Tensor, " c"]
    scale: float = 1.0
    smooth: bool = True
    remark: str = ""

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Where the features stand in the first linear layer's flat input."""
        return self.layout.positions

    def features(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        """Features by pooling alone. Bit by bit those of the network when taps are one and data not normalised."""
        return torch.cat([self._features(part) for part in inputs.split(CHUNK)])

    def _features(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        x = self.sources(inputs)
        for step in self.layout.steps:
            x = pooled(step, shifted(step, x))
        x = x.flatten(1)
        return x if self.scale == 1 else x * self.scale

    def sources(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n s h w"]:
        """What the first layer writes, at scale one."""
        u = (inputs - self.data.low) / self.data.range
        above = (u - _wide(self.floor, u)).clamp(min=0)
        if not self.layout.minima:
            return above
        return torch.cat([above, (_wide(self.ceiling, u) - u).clamp(min=0)], 1)

    def bounds(
        self, features: Float[Tensor, "n f"]
    ) -> tuple[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"], Float[Tensor, "h w"]]:
        """L and U of u, within [0, 1], and 1 where any region covers a pixel."""
        grid = self._grid(features)
        rows, columns = self._cells(0), self._cells(1)
        colours = self.layout.colours
        upper = features.new_ones(len(features), colours, *self._lattice())
        lower = torch.zeros_like(upper)
        covered = torch.zeros(upper.shape[2:], dtype=torch.bool)
        # One row and column more: what a shifted grid has where it does not reach.
        # A feature that was not seen bounds nothing.
        highest = F.pad((_wide(self.floor, grid) + grid[:, :, :colours]).nan_to_num(nan=1.0), (0, 1, 0, 1), value=1.0)
        lowest = None
        if self.layout.minima:
            below = (_wide(self.ceiling, grid) - grid[:, :, colours:]).nan_to_num(nan=0.0)
            lowest = F.pad(below, (0, 1, 0, 1), value=0.0)
        for number, directions in enumerate(product(range(4), repeat=self.layout.directions)):
            # The first four-direction layer's direction varies fastest, in channels as in `product`.
            row, column = rows[tuple(d // 2 for d in directions)], columns[tuple(d % 2 for d in directions)]
            upper = torch.minimum(upper, highest[:, number].index_select(2, row).index_select(3, column))
            if lowest is not None:
                lower = torch.maximum(lower, lowest[:, number].index_select(2, row).index_select(3, column))
            covered |= (row < grid.shape[3])[:, None] & (column < grid.shape[4])
        seen = self._pixels(covered.to(upper)[None, None], 0.0)[0, 0]
        return self._pixels(lower, 0.0), self._pixels(upper, 1.0), seen

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        """The midpoint of the bounds (U without minima), smoothed, clamped, in the raw range.

        Quality is uneven: few regions cover the upper left, and cut ones the lower right. Averaged or noisy
        features may give L > U; the midpoint stays. Pixels that no region covers are mid-grey.
        """
        parts = [self._images(part) for part in features.split(CHUNK)]
        return torch.cat(parts) if parts else features.new_zeros(0, *self.data.shape)

    def _images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        lower, upper, covered = self.bounds(features)
        estimate = (lower + upper) / 2 if self.layout.minima else torch.where(covered > 0, upper, 0.5)
        if self.smooth:
            estimate = smoothed(estimate)
        return self.data.low + self.data.range * estimate.clamp(0, 1)

    def rescaled(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n f"]:
        """Divides each row by a guess of its factor.

        With minima: max u + (1 − min u) is 1 in a flat region and larger elsewhere, so the least of these sums is
        the factor, provided that some region of some colour is flat. Without minima, or where floor and
        ceiling are equal, the brightest region is taken for white.
        """
        grid = self._grid(features)
        colours = self.layout.colours
        above = grid[:, :, :colours]
        span = _wide(self.ceiling - self.floor, grid)
        if self.layout.minima and bool((span > 0).all()):
            factor = ((above + grid[:, :, colours:]) / span).flatten(1).nan_to_num(nan=torch.inf).amin(1)
        else:
            factor = (above / (1 - _wide(self.floor, grid)).clamp(min=1e-6)).flatten(1).nan_to_num(nan=0.0).amax(1)
        return features / factor.clamp(min=torch.finfo(features.dtype).tiny)[:, None]

    def _grid(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n d s h w"]:
        """Features at scale one by direction, source and cell."""
        shape = (4**self.layout.directions, self.layout.sources, *self.layout.flat_shape[1:])
        return features.reshape(len(features), *shape) / self.scale

    def _cells(self, axis: int) -> dict[tuple[int, ...], Int[Tensor, " lattice"]]:
        """For each sequence of shifts (0 or 1) along an axis: the cell that covers a position, or one past the last.

        Positions are those of the lattice on which the first four-direction layer works, where all of its
        pixels share their regions.
        """
        steps = self._from_first_direction()
        size = self._lattice()[axis]
        found = {}
        for halves in product(range(2), repeat=self.layout.directions):
            spans = [(i, i + 1) for i in range(size)]
            left = iter(reversed(halves))
            for step in steps:
                if step.directions and next(left):
                    spans = spans[1:] + spans[-1:]
                by = step.stage.pool
                spans = [(spans[by * a][0], spans[by * a + by - 1][1]) for a in range(len(spans) // by)]
            cells = torch.full((size,), len(spans))
            for a, (start, end) in enumerate(spans):
                cells[start:end] = a
            found[halves] = cells
        return found

    def _from_first_direction(self) -> tuple[ConvolutionStep, ...]:
        steps = self.layout.steps
        first = next((i for i, step in enumerate(steps) if step.directions), len(steps))
        return steps[first:]

    def _lattice(self) -> tuple[int, int]:
        steps = self._from_first_direction()
        return steps[0].stage.size if steps else self.layout.flat_shape[1:]

    def _pixels(self, lattice: Float[Tensor, "n c a b"], missing: float) -> Float[Tensor, "n c h w"]:
        """Each position of the lattice repeated over its pixels; what earlier pools cut off is `missing`."""
        before = len(self.layout.steps) - len(self._from_first_direction())
        side = prod(step.stage.pool for step in self.layout.steps[:before])
        whole = lattice.repeat_interleave(side, 2).repeat_interleave(side, 3)
        _, height, width = self.data.shape
        return F.pad(whole, (0, width - whole.shape[3], 0, height - whole.shape[2]), value=missing)


def shifted(step: ConvolutionStep, x: Float[Tensor, "n i h w"]) -> Float[Tensor, "n o h w"]:
    """What the convolution writes: `x`, or `x` and its neighbours right, below and both, edges replicated.

    With zero padding the network has zeros there instead; the pool pairs them with a real value, so that what
    leaves it is the same.
    """
    if not step.directions:
        return x
    right = torch.cat([x[..., 1:], x[..., -1:]], 3)
    both = torch.cat([x, right], 1)
    return torch.cat([both, torch.cat([both[:, :, 1:], both[:, :, -1:]], 2)], 1)


def pooled(step: ConvolutionStep, x: Float[Tensor, "n o h w"]) -> Float[Tensor, "n o a b"]:
    """The max-pool that follows, if any."""
    return F.max_pool2d(x, step.stage.pool) if step.stage.pool > 1 else x


def written(layout: ConvolutionLayout, x: Float[Tensor, "n s h w"]) -> Iterator[Float[Tensor, "n o a b"]]:
    """What each convolution writes, at scale one, from what the first one does."""
    for step in layout.steps:
        x = shifted(step, x)
        yield x
        x = pooled(step, x)


def smoothed(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """5×5 Gaussian of σ 10 px, almost a mean; edges replicated."""
    offsets = torch.arange(WINDOW, dtype=x.dtype) - WINDOW // 2
    kernel = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    kernel = (kernel / kernel.sum()).to(x)
    pad = WINDOW // 2
    for axis in (2, 3):
        size = x.shape[axis]
        index = torch.arange(-pad, size + pad).clamp(0, size - 1)
        wide = x.index_select(axis, index)
        x = kernel[0] * wide.narrow(axis, 0, size)
        for i in range(1, WINDOW):
            x.add_(wide.narrow(axis, i, size), alpha=float(kernel[i]))
    return x


def _wide(values: Float[Tensor, " c"], like: Tensor) -> Tensor:
    return values.to(like).view(-1, 1, 1)
