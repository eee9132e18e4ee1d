"""Canvases that are networks: generators and decoders."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from leakgauge.attacks.matching.parts import Bounds, Canvas
from leakgauge.errors import require
from leakgauge.models.generators import LARGEST, CINetGenerator, PictureNetwork
from leakgauge.registry import CANVASES
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@runtime_checkable
class Output(Protocol):
    """What a generator's (−1, 1) means in raw data."""

    def __call__(self, picture: Float[Tensor, "n *shape"], data: DataSpec) -> Float[Tensor, "n *shape"]: ...


@dataclass(frozen=True)
class IntoRange:
    """(−1, 1) mapped to the data's true range, linearly: far faster than `AsItIs`."""

    def __call__(self, picture: Float[Tensor, "n *shape"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        return data.low + data.range * (picture + 1) / 2


@CANVASES.register("generator", needs="images")
@dataclass(frozen=True, kw_only=True)
class Generator(Canvas):
    """The weights of an untrained network, which makes the batch from fixed random codes.

    Pictures whose sides are not 4·2^k are cut from the middle of the next larger ones.

    Attributes:
        network: from a code to pictures in (−1, 1).
        output: what these mean.
    """

    network: PictureNetwork = field(default_factory=CINetGenerator)
    output: Output = field(default_factory=IntoRange)

    def refuses(self, data: DataSpec) -> str:
        """Why it cannot make such data, or nothing."""
        if data.is_image and max(data.shape[1:]) <= LARGEST:
            return ""
        return f"a generator makes pictures of at most {LARGEST} px, the data have shape {data.shape}"

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        why = self.refuses(data)
        require(not why, "canvas", why, "use another canvas")
        size = max(data.shape[1:])
        weights = self.network.weights(examples, data.shape[0], size, generator)
        code = self.network.code(examples, size, generator)
        return {"code": code} | {f"weights.{name}": tensor for name, tensor in weights.items()}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        # Detached: the codes stay as drawn, whatever the minimiser.
        pictures = self.network(_part(variables, "weights."), variables["code"].detach())
        return data.normalise(self.output(_middle(pictures, data), data))

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Pretrained(Canvas):
    """A user's generator: codes of all pictures, and for each picture its own copy of the weights.

    Runs in eval mode. The module is called with codes ``(1, *code)`` under `torch.func.vmap`; its output must
    have the shape of the data. Memory holds one copy of the weights a picture and restart.

    Attributes:
        module: from a code to a picture.
        code: shape of one code; codes start at N(0, 1).
        output: what the module's output means; the default takes it to be in (−1, 1).
    """

    module: nn.Module
    code: tuple[int, ...]
    output: Output = field(default_factory=IntoRange)

    def __post_init__(self) -> None:
        frozen = copy.deepcopy(self.module).eval().requires_grad_(False)
        object.__setattr__(self, "module", frozen)

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        codes = torch.randn((examples, *self.code), generator=generator, dtype=torch.float64)
        weights = {
            f"weights.{name}": tensor.double().cpu().expand(examples, *tensor.shape).clone()
            for name, tensor in self.module.named_parameters()
        }
        return {"code": codes} | weights

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        codes = variables["code"]
        buffers = {
            name: b.to(codes) if b.is_floating_point() else b.to(codes.device)
            for name, b in self.module.named_buffers()
        }

        def one(weights: Tensors, code: Tensor) -> Tensor:
            return cast(Tensor, functional_call(self.module, {**weights, **buffers}, (code[None],)))[0]

        pictures = vmap(one)(_part(variables, "weights."), codes)
        return data.normalise(self.output(_middle(pictures, data), data))

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        return {}


def _part(variables: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): v for name, v in variables.items() if name.startswith(prefix)}


def _middle(pictures: Tensor, data: DataSpec) -> Tensor:
    """Cut to the data's sides."""
    made = tuple(pictures.shape[1:])
    same = len(made) == len(data.shape) and made[:1] == data.shape[:1]
    fits = made == data.shape or (same and len(made) == 3 and made[1] >= data.shape[1] and made[2] >= data.shape[2])
    require(fits, "generator", f"makes shape {made}", f"the data have shape {data.shape}")
    if len(data.shape) != 3:
        return pictures
    height, width = data.shape[1:]
    top, left = (pictures.shape[-2] - height) // 2, (pictures.shape[-1] - width) // 2
    return pictures[..., top : top + height, left : left + width]
