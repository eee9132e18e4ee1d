"""What is optimised: pixels in a box, or a latent of low resolution, and where the search starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Bounds, Canvas, Start
from leakgauge.errors import require
from leakgauge.registry import CANVASES
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


def unknowns(canvas: Canvas, examples: int, data: DataSpec) -> int:
    """Variables of a canvas, but no more than its examples have values."""
    variables = canvas.start(examples, data, torch.Generator())
    return min(sum(v.numel() for v in variables.values()), examples * torch.Size(data.shape).numel())


@dataclass(frozen=True)
class Normal(Start):
    """N(0, 1) in model-input units (DLG, Inverting Gradients)."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        return torch.randn((examples, *data.shape), generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Uniform(Start):
    """Uniform over the data's raw range (Qian & Hansen)."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        raw = torch.rand((examples, *data.shape), generator=generator, dtype=torch.float64)
        return data.normalise(data.low + data.range * raw)


@dataclass(frozen=True, eq=False)
class Given(Start):
    """A guess from elsewhere, raw: a closed-form read, a natural image.

    Attributes:
        between: least and largest raw value of each input, where they are known.
    """

    inputs: Float[Tensor, "n *shape"]
    between: Bounds | None = None

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        return data.normalise(self.inputs.double().clamp(data.low, data.high))


@CANVASES.register("pixels")
@dataclass(frozen=True, kw_only=True)
class Pixels(Canvas):
    """The examples themselves, in model-input units.

    Attributes:
        first: the first guess.
        box: keep them in the data's true range, and between the limits of a `Given` start.
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
        low, high = edge + data.low, edge + data.high
        if isinstance(self.first, Given) and self.first.between is not None:
            low, high = (end.double().clamp(data.low, data.high) for end in self.first.between)
        return {"pixels": (data.normalise(low), data.normalise(high))}


@CANVASES.register("low-resolution", needs="images")
@dataclass(frozen=True, kw_only=True)
class LowResolution(Canvas):
    """Latents Z of c×⌈h/factor⌉×⌈w/factor⌉; the picture is low + range · enlarge(Z), bicubic.

    Source: ROG's code: Z is drawn from U(0, 1) directly (the paper draws a picture and reduces it), enlarged by
    ``F.interpolate(mode="bicubic", align_corners=False)``, not clamped: between bright pixels it overshoots.
    Fewer unknowns make the update of an untrained network with a wide first linear layer easier to match, and keep
    out what noise and rounding would put into single pixels. In return nothing above the small picture's resolution
    can come back: `ceiling` says what a perfect search would show.

    A learning rate is in units of the data's range, whatever the normalisation.

    Attributes:
        factor: pixels of a side that one pixel of the latent stands for.
        first: the first guess, at the latent's own size.
        box: keep latents in [0, 1]; ROG does not.
    """

    factor: int = 4
    first: Start = field(default_factory=Uniform)
    box: bool = False

    def __post_init__(self) -> None:
        require(self.factor > 0, "factor", f"is {self.factor}", "give a positive whole number")

    def refuses(self, data: DataSpec) -> str:
        """Why it cannot make such data, or nothing."""
        return "" if len(data.shape) == 3 else f"low-resolution needs two spatial axes, the data have {data.shape}"

    def small(self, data: DataSpec) -> DataSpec:
        """The data at the latent's size."""
        channels, height, width = data.shape
        return replace(data, shape=(channels, -(-height // self.factor), -(-width // self.factor)))

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        why = self.refuses(data)
        require(not why, "canvas", why, "use another canvas")
        small = self.small(data)
        raw = small.denormalise(self.first(examples, small, generator))
        return {"latents": (raw - data.low) / data.range}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        large = F.interpolate(variables["latents"], data.shape[1:], mode="bicubic", align_corners=False)
        return data.normalise(data.low + data.range * large)

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        if not self.box:
            return {}
        edge = torch.zeros((1, *self.small(data).shape), dtype=torch.float64)
        return {"latents": (edge, edge + 1)}

    def ceiling(self, truth: Float[Tensor, "n c h w"], data: DataSpec) -> Float[Tensor, "n c h w"]:
        """`truth`, raw, reduced (bicubic, antialiased) and enlarged again: about the best that this canvas can show.

        For reports and tests, which hold the truth; attacks have none to give.
        """
        size = self.small(data).shape[1:]
        latents = F.interpolate(
            (truth - data.low) / data.range, size, mode="bicubic", align_corners=False, antialias=True
        )
        return data.denormalise(self.decode({"latents": latents}, data))
