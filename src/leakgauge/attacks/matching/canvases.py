"""What is optimised, and where it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.registry import CANVASES
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors

Bounds = tuple[Tensor, Tensor]
"""Lower and upper bound of a variable, broadcastable to its shape."""


@runtime_checkable
class Canvas(Protocol):
    """Variables that stand for a batch of examples."""

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """Initial variables of one restart, float64 on the CPU."""
        ...

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        """Variables → examples in model-input (normalised) units, differentiable."""
        ...

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        """Bounds of the variables that have some, float64 on the CPU."""
        ...


def unknowns(canvas: Canvas, examples: int, data: DataSpec) -> int:
    """Variables of a canvas, but no more than its examples have values."""
    variables = canvas.start(examples, data, torch.Generator())
    return min(sum(v.numel() for v in variables.values()), examples * torch.Size(data.shape).numel())


@runtime_checkable
class Start(Protocol):
    """First guess of pixels, in model-input units."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]: ...


@dataclass(frozen=True)
class Normal:
    """N(0, 1) in model-input units (DLG, Inverting Gradients)."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        return torch.randn((examples, *data.shape), generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Uniform:
    """Uniform over the data's raw range (Qian & Hansen)."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        raw = torch.rand((examples, *data.shape), generator=generator, dtype=torch.float64)
        return data.normalise(data.low + data.range * raw)


@dataclass(frozen=True, eq=False)
class Given:
    """A guess from elsewhere, raw: a closed-form read, a natural image."""

    inputs: Float[Tensor, "n *shape"]

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        return data.normalise(self.inputs.double().clamp(data.low, data.high))


@CANVASES.register("pixels")
@dataclass(frozen=True, kw_only=True)
class Pixels:
    """The examples themselves, in model-input units.

    Attributes:
        first: the first guess.
        box: keep them in the data's true range.
    """

    first: Start = field(default_factory=Normal)
    box: bool = True

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        return {"pixels": self.first(examples, data, generator)}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        return variables["pixels"]

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        if not self.box:
            return {}
        edge = torch.zeros((1, *data.shape), dtype=torch.float64)
        return {"pixels": (data.normalise(edge + data.low), data.normalise(edge + data.high))}
