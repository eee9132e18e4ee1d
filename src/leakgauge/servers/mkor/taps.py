"""Crafted convolutions of a VGG: as MKOR's release has them, as its Eq. (20) has them, and harder to see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.errors import require
from leakgauge.registry import TAPS
from leakgauge.servers.mkor.convolutions import crafted_convolutions
from leakgauge.servers.mkor.layout import ConvolutionStep
from leakgauge.servers.mkor.parts import CraftedFeatures
from leakgauge.task import Task


@TAPS.register("published", needs="a chain of convolutions, max-pools and linear layers")
@dataclass(frozen=True, kw_only=True)
class PublishedTaps:
    """MKOR's convolutions as released: a written channel's row is zero but for one entry of 1.

    Every bias of a convolution is 0, but that of minima is 1. Reads local maxima of u and of 1 − u exactly
    (`leakgauge.servers.mkor.pooling.PooledMap`). Changes 22.8 % of VGG16's convolutional parameters (the paper
    counts less than 1 % of the whole network, which is the count for `BlockTaps`, without linear layers).

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
            task, self._rows, generator, directions=self.directions, smooth=self.smooth, clear_biases=True
        )

    def _rows(self, step: ConvolutionStep, weight: Tensor) -> Tensor:
        return _zeros(step, weight)


@TAPS.register("quiet", needs="a chain of convolutions, max-pools and linear layers")
@dataclass(frozen=True, kw_only=True)
class QuietTaps:
    """The same construction, less easy to see: channels in random order, taps of ordinary size, no exact zeros.

    What is not written or read keeps its weights and biases. MKOR proposes shuffling, a gain β and noise; its
    release has none of them.

    Attributes:
        shuffle: channels are drawn at random.
        beta: a tap as a multiple of the layer's largest honest weight; `None` sets taps to 1. Features then
            have the product of all taps as their scale (2e-21 in a default-initialised VGG16 at 1), which the map
            undoes.
        noise: standard deviation of what stands for zeros, relative to that of the layer's honest weights.
            The map does not undo it: in VGG16 .01, .03 and .1 give 0.9, 2.7 and 9 % relative feature error at
            taps of 1 (16 images, one draw). With small `beta` the signal shrinks from layer to layer and the
            noise, which reads channels that do not, drowns it: .01 costs 1.4 % at β = 30 and everything at 10.
        directions: four-direction layers, `None` for as many as fit.
        smooth: smooth the images as the release does.
    """

    shuffle: bool = True
    beta: float | None = None
    noise: float = 0.0
    directions: int | None = None
    smooth: bool = True

    def __post_init__(self) -> None:
        require(self.beta is None or self.beta > 0, "beta", f"is {self.beta}", "give a positive number")
        require(self.noise >= 0, "noise", f"is {self.noise}", "give a number of at least 0")

    def craft(self, task: Task, generator: torch.Generator) -> CraftedFeatures:
        def noisy(step: ConvolutionStep, weight: Tensor) -> Tensor:
            rows = weight[step.writes]
            draw = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            return (draw * self.noise * float(weight.std())).to(rows)

        return crafted_convolutions(
            task,
            noisy if self.noise else _zeros,
            generator,
            directions=self.directions,
            smooth=self.smooth,
            shuffle=self.shuffle,
            beta=self.beta,
        )


def _zeros(step: ConvolutionStep, weight: Tensor) -> Tensor:
    return torch.zeros_like(weight[step.writes])
