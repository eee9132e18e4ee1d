"""What is optimised: pixels in a box, a small picture, or a network's weights; and where the search starts."""

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Bounds, Canvas, Start
from leakgauge.errors import Checked, positive, require
from leakgauge.models.networks import LARGEST, CINetGenerator, PictureNetwork
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
    """A guess from elsewhere, raw: a closed-form read, a natural image; `between` the least and largest raw value of
    each input, where they are known."""

    inputs: Float[Tensor, "n *shape"]
    between: Bounds | None = None

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]:
        return data.normalise(self.inputs.double().clamp(data.low, data.high))


@CANVASES.register("pixels")
@dataclass(frozen=True, kw_only=True)
class Pixels(Canvas):
    """The examples themselves, in model-input units; with `box` within the data's true range, and between the limits of
    a `Given` start."""

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
class LowResolution(Checked, Canvas):
    """Latents Z of c×⌈h/factor⌉×⌈w/factor⌉; the picture is low + range · enlarge(Z), bicubic.

    Source: ROG's code: Z is drawn from U(0, 1) directly (the paper draws a picture and reduces it), enlarged by
    ``F.interpolate(mode="bicubic", align_corners=False)``, not clamped: between bright pixels it overshoots.
    Fewer unknowns make the update of an untrained network with a wide first linear layer easier to match, and keep
    out what noise and rounding would put into single pixels. In return nothing above the small picture's resolution
    can come back.

    A learning rate is in units of the data's range, whatever the normalisation.
    """

    factor: int = positive(4, "whole number")  #: pixels of a side that one pixel of the latent stands for
    first: Start = field(default_factory=Uniform)  #: the first guess, at the latent's own size
    box: bool = False  #: keep latents in [0, 1]; ROG does not.

    def refuses(self, data: DataSpec) -> str:
        return "" if len(data.shape) == 3 else f"low-resolution needs two spatial axes, the data have {data.shape}"

    def small(self, data: DataSpec) -> DataSpec:
        """The data at the latent's size."""
        channels, height, width = data.shape
        return replace(data, shape=(channels, -(-height // self.factor), -(-width // self.factor)))

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        small = self.small(data)
        return {"latents": (small.denormalise(self.first(examples, small, generator)) - data.low) / data.range}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        large = F.interpolate(variables["latents"], data.shape[1:], mode="bicubic", align_corners=False)
        return data.normalise(data.low + data.range * large)

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        if not self.box:
            return {}
        edge = torch.zeros((1, *self.small(data).shape), dtype=torch.float64)
        return {"latents": (edge, edge + 1)}


@CANVASES.register("generator", needs="images")
@dataclass(frozen=True, kw_only=True)
class Generator(Canvas):
    """The weights of an untrained network, which makes the batch from fixed random codes.

    Pictures whose sides are not 4·2^k are cut from the middle of the next larger ones.
    """

    network: PictureNetwork = field(default_factory=CINetGenerator)

    def refuses(self, data: DataSpec) -> str:
        if data.is_image and max(data.shape[1:]) <= LARGEST:
            return ""
        return f"a generator makes pictures of at most {LARGEST} px, the data have shape {data.shape}"

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        size = max(data.shape[1:])
        weights = self.network.weights(examples, data.shape[0], size, generator)
        code = self.network.code(examples, size, generator)
        return {"code": code} | {f"weights.{name}": tensor for name, tensor in weights.items()}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        # Detached: the codes stay as drawn, whatever the minimiser.
        weights = {k.removeprefix("weights."): v for k, v in variables.items() if k.startswith("weights.")}
        pictures = self.network(weights, variables["code"].detach())
        return data.normalise(self.raw(middle(pictures, data), data))

    def raw(self, picture: Float[Tensor, "n *shape"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        """A network's (−1, 1) over the data's whole range."""
        return data.low + data.range * (picture + 1) / 2


def middle(pictures: Tensor, data: DataSpec) -> Tensor:
    """Cut to the data's sides. Raises `InputError` for smaller pictures or other channels."""
    made, wanted = tuple(pictures.shape[1:]), tuple(data.shape)
    larger = len(made) == len(wanted) == 3 and made[0] == wanted[0] and made[1] >= wanted[1] and made[2] >= wanted[2]
    require(larger, "generator", f"makes shape {made}", f"the data have shape {data.shape}")
    top, left = (made[1] - wanted[1]) // 2, (made[2] - wanted[2]) // 2
    return pictures[..., top : top + wanted[1], left : left + wanted[2]]
