"""A canvas of codes: pictures are what a fixed, trained decoder makes of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.matching.canvases import Bounds, Start, Uniform
from leakgauge.attacks.matching.generator import Output
from leakgauge.errors import require
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class UnitRange:
    """A decoder's (0, 1) mapped to the data's true range, linearly."""

    def __call__(self, picture: Float[Tensor, "n *shape"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        return data.low + data.range * picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoder:
    """Codes of shape `code`, one an example, through `module`, whose weights do not move (`Pretrained` moves them too).

    Source: ROG's ablation: the decoder of an autoencoder that was trained on such pictures, in place of the bicubic
    enlargement. Runs in eval mode.

    Attributes:
        module: from codes ``(n, *code)`` to pictures of the data's shape.
        code: shape of one code.
        encoder: codes start at what it makes of the first guess, in the decoder's range (ROG, in its paper); without
            one at N(0, 1).
        first: that guess.
        output: what the decoder's output means; by default (0, 1) is the data's range.
    """

    module: nn.Module
    code: tuple[int, ...]
    encoder: nn.Module | None = None
    first: Start = field(default_factory=Uniform)
    output: Output = field(default_factory=UnitRange)

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", _frozen(self.module))
        if self.encoder is not None:
            object.__setattr__(self, "encoder", _frozen(self.encoder))

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        if self.encoder is None:
            return {"codes": torch.randn((examples, *self.code), generator=generator, dtype=torch.float64)}
        raw = data.denormalise(self.first(examples, data, generator))
        codes = _called(self.encoder, (raw - data.low) / data.range).detach()
        shapes = f"codes of shape {tuple(codes.shape[1:])} for a decoder of {self.code}"
        require(codes.shape[1:] == self.code, "encoder", f"makes {shapes}", "give its own encoder")
        return {"codes": codes}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        pictures = _called(self.module, variables["codes"])
        made = tuple(pictures.shape[1:])
        require(
            made == data.shape, "module", f"makes {made}, the data have {data.shape}", "give a decoder of that size"
        )
        return data.normalise(self.output(pictures, data))

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        return {}


def _frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).eval().requires_grad_(False)


def _called(module: nn.Module, given: Tensor) -> Tensor:
    """In the dtype and on the device of what is given, which need not be the module's."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {k: v.to(given) if v.is_floating_point() else v.to(given.device) for k, v in state.items()}
    return cast(Tensor, functional_call(module, state, (given,)))
