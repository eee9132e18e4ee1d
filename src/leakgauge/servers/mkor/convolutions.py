"""Convolutions that copy the picture: which channels hold what, and the weights that do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.servers.mkor.network import FIT, Chain, chain
from leakgauge.servers.mkor.parts import TAPS, CraftedFeatures
from leakgauge.servers.mkor.pooling import ConvolutionLayout, ConvolutionStep, PooledMap
from leakgauge.task import Task
from leakgauge.tensors import Tensors


def layout(found: Chain, *, directions: int | None, shuffle: torch.Generator | None) -> ConvolutionLayout:
    """Assigns channels.

    Four-direction layers are the last convolutions before each of the last I pools, the first convolution
    excepted. Each multiplies the channels by four, and all layers from there on must be wide enough. I is the
    largest number that fits, or `directions`.

    Args:
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
    minima = narrow.outputs >= 2 * colours
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

    The first layer, which needs a bias for it, undoes the data's normalisation.

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
    require(first.bias is not None, "model", f"layer '{first.name}' has no bias", "give it one")
    state = {**task.parameters, **task.buffers}
    colour = torch.ones(first.inputs, dtype=torch.float64)
    # u = gain · (model input) + middle.
    gain = colour * torch.tensor(task.data.std, dtype=torch.float64) / task.data.range
    middle = (colour * torch.tensor(task.data.mean, dtype=torch.float64) - task.data.low) / task.data.range
    plan = layout(found, directions=directions, shuffle=generator if shuffle else None)
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
            offset = tap * torch.cat([middle, 1 - middle])[: plan.sources]
        scale *= tap
        new[step.stage.weight] = _tapped(step, rows(step, honest), honest, taps)
        if step.stage.bias is not None:
            bias = state[step.stage.bias]
            bias = torch.zeros_like(bias) if clear_biases else bias.clone()
            bias[step.writes] = offset.to(bias)
            new[step.stage.bias] = bias
    remark = "" if plan.minima else "only maxima are read, for a layer is too narrow for minima beside them"
    return CraftedFeatures(new, PooledMap(layout=plan, data=task.data, scale=scale, smooth=smooth, remark=remark))


def _tapped(step: ConvolutionStep, rows: Tensor, honest: Tensor, taps: Tensor) -> Tensor:
    weight = honest.clone()
    weight[step.writes] = rows
    order = torch.arange(len(step.writes))
    direction = order // len(step.reads) if step.directions else torch.zeros_like(order)
    source = step.reads[order % len(step.reads)]
    centre = step.stage.kernel // 2
    weight[step.writes, source, centre + direction // 2, centre + direction % 2] = taps.to(weight)
    return weight


@TAPS.register("published", needs="a chain of convolutions, max-pools and linear layers")
@dataclass(frozen=True, kw_only=True)
class PublishedTaps:
    """MKOR's convolutions as released: a written channel's row is zero but for one entry of 1.

    Every bias of a convolution is 0, but that of minima is 1. Reads local maxima of u and of 1 − u exactly
    (`leakgauge.servers.mkor.pooling.PooledMap`).

    Source: MKOR's release. Differs: any network of this kind; zero padding is left (the features are the
    same); the data's normalisation is undone in the first layer.

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
