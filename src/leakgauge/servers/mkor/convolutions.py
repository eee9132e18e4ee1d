"""Convolutions that copy the picture: which channels hold what, and the weights that do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.servers.mkor.network import FIT, Stage, chain
from leakgauge.servers.mkor.parts import TAPS, CraftedFeatures
from leakgauge.servers.mkor.pooling import ConvolutionStep, PooledMap
from leakgauge.task import Task
from leakgauge.tensors import Tensors


def assigned(stages: Sequence[Stage], directions: int | None) -> tuple[tuple[ConvolutionStep, ...], bool]:
    """Which channels hold what, and whether minima travel beside maxima.

    Four-direction layers are the last convolutions before each of the last I pools, the first convolution
    excepted. Each multiplies the channels by four, and all layers from there on must be wide enough. I is the
    largest number that fits, or `directions`.

    Raises:
        InputError: a layer has fewer channels than the image has colours, or `directions` does not fit.
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
    (`leakgauge.servers.mkor.pooling.PooledMap`).

    Source: MKOR's release. Differs: any chain of convolutions and max-pools; zero padding is left (the features are
    the same); the data's normalisation is undone in the first layer, which needs a bias for it.

    Attributes:
        directions: four-direction layers, `None` for as many as fit.
        smooth: smooth the images as the release does.
    """

    directions: int | None = None
    smooth: bool = True

    def craft(self, task: Task, generator: torch.Generator) -> CraftedFeatures:
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
        found = PooledMap(steps=steps, minima=minima, flat_shape=flat_shape, data=data, smooth=self.smooth)
        return CraftedFeatures(state, found)


def _tapped(step: ConvolutionStep, honest: Tensor) -> Tensor:
    """The layer's weight, each written row zero but for one entry of 1."""
    weight, order = honest.clone(), torch.arange(len(step.writes))
    direction = order // len(step.reads) if step.directions else torch.zeros_like(order)
    centre = step.stage.kernel // 2
    weight[step.writes] = 0
    place = (step.reads[order % len(step.reads)], centre + direction // 2, centre + direction % 2)
    weight[(step.writes, *place)] = 1
    return weight
