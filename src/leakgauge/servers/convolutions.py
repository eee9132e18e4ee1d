"""Convolutions that copy the picture: the weights that do it, the local extremes that come out, pictures from those."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from scipy.ndimage import gaussian_filter
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.registry import TAPS
from leakgauge.servers.network import FIT, Stage, chain
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import Tensors

CHUNK = 16  # images at a time: bounds memory at 224 px
RADIUS, SIGMA = 2, 10.0  # reach and standard deviation of the release's smoothing, in pixels


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvolutionStep:
    """One convolution's share of the construction."""

    stage: Stage
    directions: bool  # each channel is written four times: as it is, and read one to the right, below, and both
    reads: Int[Tensor, " i"]  # channels of the layer before; of the image for the first step
    # channels of this layer. A copy writes its i-th from the i-th read; a four-direction layer with m reads writes
    # number i + m·d from read i and direction d; the first writes the colours' maxima, then their minima.
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
    """

    steps: tuple[ConvolutionStep, ...]  # in order of computation
    minima: bool  # whether each colour's minima travel beside its maxima
    flat_shape: tuple[int, int, int]  # (c, h, w) of what the first linear layer flattens
    data: DataSpec
    # the release's 5×5 Gaussian smoothing (σ 10 px, edges replicated) of the midpoint; the paper has none
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

    def _tightest(self, x: Float[Tensor, "n d c a b"], tighter: "Tighter") -> Float[Tensor, "n c h w"]:
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
        made = []
        for lower, upper, covered in map(self.bounds, features.split(CHUNK)):
            estimate = (lower + upper) / 2 if self.minima else torch.where(covered, upper, 0.5)
            estimate = smoothed(estimate) if self.smooth else estimate
            made.append(self.data.low + self.data.range * estimate.clamp(0, 1))
        return torch.cat(made)


Tighter = Callable[[Tensor, Tensor], Tensor]  # the nearer of two bounds; a number where one of them is NaN


def _unmoved(x: Tensor, axis: int, tighter: Tighter) -> Tensor:
    """Bounds of what a four-direction layer moved along an axis, where it came from."""
    *_, edge = x.split(1, axis)
    back = torch.cat([torch.full_like(edge, torch.nan), x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    last = back.narrow(axis, x.shape[axis] - 1, 1)
    last.copy_(tighter(last, edge))
    return back


def smoothed(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """5×5 Gaussian of σ 10 px, almost a mean; edges replicated."""
    return torch.from_numpy(gaussian_filter(x.numpy(), SIGMA, mode="nearest", radius=RADIUS, axes=(2, 3)))


def assigned(stages: Sequence[Stage], directions: int | None) -> tuple[tuple[ConvolutionStep, ...], bool]:
    """Which channels hold what, and whether minima travel beside maxima.

    Four-direction layers are the last convolutions before each of the last I pools, the first convolution excepted.
    Each multiplies the channels by four, and all layers from there on must be wide enough. I is the largest number that
    fits, or `directions`. Raises `InputError`: a layer has fewer channels than the image has colours, or `directions`
    does not fit.
    """
    colours = stages[0].inputs
    narrow = min(stages, key=lambda stage: stage.outputs)
    problem = f"layer '{narrow.name}' has {narrow.outputs} channels and the image has {colours}"
    require(narrow.outputs >= colours, "model", problem, "give wider layers")
    minima = narrow.outputs >= 2 * colours
    count = colours * (2 if minima else 1)
    chosen = _directions(stages, count, directions)
    steps: list[ConvolutionStep] = []
    reads = torch.arange(colours)
    for i, stage in enumerate(stages):
        count *= 4 if i in chosen else 1
        writes = torch.arange(count)
        steps.append(ConvolutionStep(stage=stage, directions=i in chosen, reads=reads, writes=writes))
        reads = writes
    return tuple(steps), minima


def _directions(stages: Sequence[Stage], sources: int, wanted: int | None) -> list[int]:
    """Indices of the four-direction layers."""
    candidates = [i for i, s in enumerate(stages) if i > 0 and s.pool > 1 and s.kernel > 1]

    def fits(used: list[int]) -> bool:
        return all(sources * 4 ** sum(j <= i for j in used) <= stage.outputs for i, stage in enumerate(stages))

    room = [used for k in range(len(candidates) + 1) if fits(used := candidates[len(candidates) - k :])]
    most = len(room[-1])
    number = most if wanted is None else wanted
    reason = f"{len(candidates)} layers before pools qualify, and {sources}·4^I channels must fit every later layer"
    problem = f"is {number}, and this network has room for {most} ({reason})"
    require(0 <= number <= most, "directions", problem, FIT)
    return candidates[len(candidates) - number :]


@TAPS.register("published", needs="a chain of convolutions, max-pools and linear layers")
@dataclass(frozen=True, kw_only=True)
class PublishedTaps:
    """MKOR's convolutions as released: a written channel's row is zero but for one entry of 1.

    Every bias of a convolution is 0, but that of minima is 1. Reads local maxima of u and of 1 − u exactly
    (`PooledMap`).

    Source: MKOR's release. Differs: any chain of convolutions and max-pools; zero padding is left (the features are
    the same); the data's normalisation is undone in the first layer, which needs a bias for it.

    Attributes:
        directions: four-direction layers, `None` for as many as fit.
        smooth: smooth the images as the release does.
    """

    directions: int | None = None
    smooth: bool = True

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, PooledMap]:
        stages, flat_shape = chain(task)
        first, data = stages[0], task.data
        require(first.inputs == data.shape[0], "model", f"layer '{first.name}' does not read the image", FIT)
        steps, minima = assigned(stages, self.directions)
        given, state = {**task.parameters, **task.buffers}, Tensors()
        for step in steps:
            state[step.stage.weight] = _tapped(step, given[step.stage.weight])
            if step.stage.bias is not None:
                state[step.stage.bias] = torch.zeros_like(given[step.stage.bias])
        if first.bias is None:
            raise InputError("model", f"layer '{first.name}' has no bias", "give it one")
        # u = gain · (model input) + middle.
        written, colour = steps[0].writes, torch.ones(first.inputs, dtype=torch.float64)
        gain = colour * torch.tensor(data.std, dtype=torch.float64) / data.range
        middle = (colour * torch.tensor(data.mean, dtype=torch.float64) - data.low) / data.range
        slope, offset = (torch.cat(both)[: len(written)] for both in ((gain, -gain), (middle, 1 - middle)))
        state[first.weight][written] *= slope.to(state[first.weight])[:, None, None, None]
        state[first.bias][written] = offset.to(state[first.bias])
        return state, PooledMap(steps=steps, minima=minima, flat_shape=flat_shape, data=data, smooth=self.smooth)


def _tapped(step: ConvolutionStep, honest: Tensor) -> Tensor:
    """The layer's weight, each written row zero but for one entry of 1."""
    weight, order = honest.clone(), torch.arange(len(step.writes))
    direction = order // len(step.reads) if step.directions else torch.zeros_like(order)
    centre = step.stage.kernel // 2
    weight[step.writes] = 0
    place = (step.reads[order % len(step.reads)], centre + direction // 2, centre + direction % 2)
    weight[(step.writes, *place)] = 1
    return weight
