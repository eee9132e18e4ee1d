"""Which channels of which layers MKOR's construction uses, and what each of them holds."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.servers.mkor.chain import FIT, Chain, Stage


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
        InputError: a layer has fewer channels than the image has colours, a dropout hits the features, or
            `directions` does not fit; names the layer.
    """
    for stage in found.features:
        problem = f"layer '{stage.name}' is followed by dropout in train mode"
        require(stage.dropout == 0, "model", problem, "set mode: eval")
    require(found.dropout == 0, "model", f"dropout in train mode comes before layer '{found.linear}'", "set mode: eval")
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
