"""Convolutions that copy the picture: which channels hold what, and the weights that do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.servers.mkor.network import FIT, BatchNormNames, Chain, Stage, chain
from leakgauge.servers.mkor.parts import TAPS, CraftedFeatures
from leakgauge.servers.mkor.pooling import ConvolutionLayout, ConvolutionStep, PooledMap, written
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.tensors import Tensors


def layout(found: Chain, *, minima: bool, directions: int | None, shuffle: torch.Generator | None) -> ConvolutionLayout:
    """Assigns channels.

    Four-direction layers are the last convolutions before each of the last I pools, the first convolution
    excepted. Each multiplies the channels by four, and all layers from there on must be wide enough. I is the
    largest number that fits, or `directions`.

    Args:
        minima: whether minima are wanted; they are left out where a layer is too narrow.
        directions: I, or `None` for the largest.
        shuffle: draws the channels that are written; `None` takes the first ones.

    Raises:
        InputError: a layer has fewer channels than the image has colours, or `directions` does not fit.
    """
    colours = found.features[0].inputs
    narrow = min(found.features, key=lambda stage: stage.outputs)
    if narrow.outputs < colours:
        problem = f"layer '{narrow.name}' has {narrow.outputs} channels and the image has {colours}"
        raise InputError("model", problem, "give wider layers")
    minima = minima and narrow.outputs >= 2 * colours
    sources = colours * (2 if minima else 1)
    chosen = _directions(found, sources, directions)
    steps: list[ConvolutionStep] = []
    reads, count = torch.arange(colours), sources
    for i, stage in enumerate(found.features):
        count *= 4 if i in chosen else 1
        order = torch.arange(stage.outputs) if shuffle is None else torch.randperm(stage.outputs, generator=shuffle)
        writes = order[:count].clone()
        steps.append(ConvolutionStep(stage=stage, directions=i in chosen, reads=reads, writes=writes))
        reads = writes
    return ConvolutionLayout(steps=tuple(steps), colours=colours, minima=minima, flat_shape=found.flat_shape)


def _directions(found: Chain, sources: int, wanted: int | None) -> set[int]:
    """Indices of the four-direction layers."""
    candidates = [i for i, s in enumerate(found.features) if i > 0 and s.pool > 1 and s.kernel > 1]
    widths = [stage.outputs for stage in found.features]

    def fits(number: int) -> bool:
        used = candidates[len(candidates) - number :]
        needed = [sources * 4 ** sum(j <= i for j in used) for i in range(len(widths))]
        return all(need <= width for need, width in zip(needed, widths, strict=True))

    most = max(number for number in range(len(candidates) + 1) if fits(number))
    number = most if wanted is None else wanted
    if not 0 <= number <= most:
        reason = f"{len(candidates)} layers before pools qualify, and {sources}·4^I channels must fit every later layer"
        raise InputError("directions", f"is {number}, and this network has room for {most} ({reason})", FIT)
    return set(candidates[len(candidates) - number :])


CALIBRATION_IMAGES = 64
"""Generated images that stand for the client's where a BatchNorm normalises by its batch."""

Rows = Callable[[ConvolutionStep, Tensor], Tensor]
"""The rows of the written channels, before taps are set, from the layer's honest weight."""


def crafted_convolutions(
    task: Task,
    rows: Rows,
    generator: torch.Generator,
    *,
    directions: int | None,
    smooth: bool,
    shuffle: bool = False,
    beta: float | None = None,
    clear_biases: bool = False,
) -> CraftedFeatures:
    """The construction of MKOR on any chain of convolutions and max-pools.

    The first layer undoes the data's normalisation. A BatchNorm becomes the identity on written channels through
    the running statistics that the server sends; one that normalises by the batch gets the mean and deviation of
    generated images, so that it is the identity only roughly. Without any bias in the first layer, maxima and
    minima start from model input zero; where that is black, there are no minima.

    Args:
        rows: what stands in written rows beside the tap.
        directions: four-direction layers, `None` for as many as fit.
        smooth: whether the map smooths its images.
        shuffle: channels are drawn from `generator`.
        beta: taps as a multiple of the layer's largest honest weight (in the first layer, the largest of the
            colours' taps); `None` for the gain one.
        clear_biases: all biases of the convolutions are set to zero, not only those of written channels.

    Raises:
        InputError: the layers do not fit; names the layer.
    """
    found = chain(task)
    first = found.features[0]
    require(first.inputs == task.data.shape[0], "model", f"layer '{first.name}' does not read the image", FIT)
    state = {**task.parameters, **task.buffers}
    colour = torch.ones(first.inputs, dtype=torch.float64)
    # u = gain · (model input) + middle.
    gain = colour * torch.tensor(task.data.std, dtype=torch.float64) / task.data.range
    middle = (colour * torch.tensor(task.data.mean, dtype=torch.float64) - task.data.low) / task.data.range
    biased = first.bias is not None or (first.norm is not None and _can_shift(task, first.norm))
    require(biased or first.relu, "model", f"layer '{first.name}' has neither bias nor ReLU", "give it one of them")
    floor, ceiling = (0 * colour, colour) if biased else (middle, middle)
    minima = biased or bool((middle > 0).all())
    plan = layout(found, minima=minima, directions=directions, shuffle=generator if shuffle else None)
    statistics = _calibrated(task, found, plan, floor, ceiling, generator)
    new: Tensors = {}
    scale = 1.0
    for number, step in enumerate(plan.steps):
        honest = state[step.stage.weight]
        tap = 1.0 if beta is None else beta * float(honest.abs().max())
        taps = torch.full((len(step.writes),), tap, dtype=torch.float64)
        offset = torch.zeros_like(taps)
        if number == 0:
            tap = tap if beta is None else tap / float(gain.max())
            taps = tap * torch.cat([gain, -gain])[: plan.sources]
            offset = tap * torch.cat([middle - floor, ceiling - middle])[: plan.sources]
        scale *= tap
        new[step.stage.weight] = _tapped(step, rows(step, honest), honest, taps)
        if step.stage.bias is not None:
            bias = state[step.stage.bias]
            bias = torch.zeros_like(bias) if clear_biases else bias.clone()
            bias[step.writes] = 0.0 if step.stage.norm is not None else offset.to(bias)
            new[step.stage.bias] = bias
        if step.stage.norm is not None:
            moments = None if statistics is None else statistics[number]
            new |= _neutral(state, step, step.stage.norm, offset, scale, moments)
    remark = _remark(first, minima, plan, statistics is not None)
    feature_map = PooledMap(
        layout=plan, data=task.data, floor=floor, ceiling=ceiling, scale=scale, smooth=smooth, remark=remark
    )
    return CraftedFeatures(new, feature_map)


def _tapped(step: ConvolutionStep, rows: Tensor, honest: Tensor, taps: Tensor) -> Tensor:
    weight = honest.clone()
    weight[step.writes] = rows
    order = torch.arange(len(step.writes))
    direction = order // len(step.reads) if step.directions else torch.zeros_like(order)
    source = step.reads[order % len(step.reads)]
    centre = step.stage.kernel // 2
    weight[step.writes, source, centre + direction // 2, centre + direction % 2] = taps.to(weight)
    return weight


def _by_batch(task: Task, norm: BatchNormNames) -> bool:
    return task.mode is Mode.TRAIN or norm.mean is None or norm.var is None


def _can_shift(task: Task, norm: BatchNormNames) -> bool:
    return norm.bias is not None or not _by_batch(task, norm)


def _neutral(
    state: Tensors,
    step: ConvolutionStep,
    norm: BatchNormNames,
    offset: Float[Tensor, " o"],
    scale: float,
    moments: tuple[Float[Tensor, " o"], Float[Tensor, " o"]] | None,
) -> Tensors:
    """What makes a BatchNorm add `offset` to the written channels and nothing else."""
    at = step.writes
    new = {name: state[name].clone() for name in (norm.weight, norm.bias, norm.mean, norm.var) if name is not None}
    if moments is not None:
        mean, variance = (value * scale**power for power, value in enumerate(moments, 1))
        assert norm.weight is not None
        assert norm.bias is not None
        new[norm.weight][at] = (variance + norm.eps).sqrt().to(new[norm.weight])
        # The mean of what leaves, offset included.
        new[norm.bias][at] = mean.to(new[norm.bias])
        return new
    assert norm.mean is not None
    assert norm.var is not None
    if norm.weight is not None:
        new[norm.weight][at] = 1.0
    if norm.bias is not None:
        new[norm.bias][at] = offset.to(new[norm.bias])
    new[norm.mean][at] = 0.0 if norm.bias is not None else -offset.to(new[norm.mean])
    new[norm.var][at] = 1.0 - norm.eps
    return new


def _calibrated(
    task: Task,
    found: Chain,
    plan: ConvolutionLayout,
    floor: Float[Tensor, " c"],
    ceiling: Float[Tensor, " c"],
    generator: torch.Generator,
) -> list[tuple[Tensor, Tensor]] | None:
    """Mean and variance of what each layer writes, over generated images; `None` where no layer needs them."""
    needing = [stage for stage in found.features if stage.norm is not None and _by_batch(task, stage.norm)]
    if not needing:
        return None
    for stage in needing:
        assert stage.norm is not None
        problem = f"layer '{stage.norm.name}' normalises by the batch and has no weight and bias to undo it"
        affine = stage.norm.weight is not None and stage.norm.bias is not None
        require(affine, "model", problem, "set mode: eval, or give it weight and bias")
    reference = PooledMap(layout=plan, data=task.data, floor=floor, ceiling=ceiling)
    values = written(plan, reference.sources(generated_images(task.data, generator)))
    return [(v.double().mean((0, 2, 3)), v.double().var((0, 2, 3), correction=0)) for v in values]


def generated_images(data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n c h w"]:
    """Raw images of smooth shapes with random brightness and contrast: half from 4×4 patches, half from 16×16."""
    channels, height, width = data.shape
    half = CALIBRATION_IMAGES // 2
    parts = []
    for side in (4, 16):
        coarse = torch.rand((half, channels, side, side), generator=generator)
        centre = torch.rand((half, channels, 1, 1), generator=generator)
        contrast = torch.rand((half, 1, 1, 1), generator=generator)
        wide = F.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)
        parts.append((centre + contrast * (2 * wide - 1)).clamp(0, 1))
    return data.low + data.range * torch.cat(parts)


def _remark(first: Stage, wanted: bool, plan: ConvolutionLayout, by_batch: bool) -> str:
    said = []
    if not wanted:
        said.append(f"only maxima are read, for layer '{first.name}' has no bias that minima could start from")
    elif not plan.minima:
        said.append("only maxima are read, for a layer is too narrow for minima beside them")
    if by_batch:
        said.append("BatchNorm by the batch is undone with statistics of generated images, so features are approximate")
    return "; ".join(said)


@TAPS.register("published", needs="a chain of convolutions, max-pools and linear layers")
@dataclass(frozen=True, kw_only=True)
class PublishedTaps:
    """MKOR's convolutions as released: a written channel's row is zero but for one entry of 1.

    Every bias of a convolution is 0, but that of minima is 1. Reads local maxima of u and of 1 − u exactly
    (`leakgauge.servers.mkor.pooling.PooledMap`).

    Source: MKOR's release. Differs: any network of this kind; zero padding is left (the features are the
    same); the data's normalisation is undone in the first layer; BatchNorm is made the identity.

    Attributes:
        directions: four-direction layers, `None` for as many as fit.
        smooth: smooth the images as the release does.
    """

    directions: int | None = None
    smooth: bool = True

    def craft(self, task: Task, generator: torch.Generator) -> CraftedFeatures:
        return crafted_convolutions(
            task, self.rows, generator, directions=self.directions, smooth=self.smooth, clear_biases=True
        )

    def rows(self, step: ConvolutionStep, weight: Tensor) -> Tensor:
        """What stands in written rows beside the tap: zeros."""
        return torch.zeros_like(weight[step.writes])
