"""A canvas that keeps what it showed, to see how a search went on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from leakgauge.attacks.matching import Canvas
from leakgauge.attacks.matching.canvases import Bounds
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Film:
    """A canvas that keeps what it showed at some evaluations (of a single restart, by a step-wise minimiser)."""

    canvas: Canvas
    at: frozenset[int]
    frames: dict[int, Tensor] = field(default_factory=dict)
    shown: list[int] = field(default_factory=lambda: [0])

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """As the canvas."""
        self.shown[0] = 0
        return self.canvas.start(examples, data, generator)

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        """As the canvas, counted."""
        z = self.canvas.decode(variables, data)
        if isinstance(z, FakeTensor):  # a step whose memory is measured, which computes nothing
            return z
        self.shown[0] += 1
        if self.shown[0] in self.at:
            self.frames[self.shown[0]] = data.denormalise(z).detach().clone()
        return z

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        """As the canvas."""
        return self.canvas.bounds(data)

    def refuses(self, data: DataSpec) -> str:
        """As the canvas."""
        return self.canvas.refuses(data)
