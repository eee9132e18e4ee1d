"""A state dict as a list of layers: one matrix each, a row per unit, with its bias where it has one."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.tensors import finite

TABLE = re.compile(r"(^|[._])(embeds?|embeddings?|emb|wte|wpe|pe|tokens?|pos|position(al)?s?|masks?)([._]|$)|embedding")
"""Names of tensors whose rows are looked up, not multiplied: their rows may repeat or follow a curve."""

MAPS = re.compile(r"(^|[._])(proj|projection|fc|linear|conv\d*)([._]|$)")
"""Names inside an embedding that are layers all the same, e.g. ``patch_embed.proj.weight``."""

CHUNK = 1 << 18  # entries that a rule works on at a time: 1 MiB of float32, so that several passes read from the cache
WIDE = 1 << 22  # the same where a chunk meets a second matrix


@dataclass(frozen=True, order=True)
class Omission:
    """What a rule should have judged and could not: a tensor or layer by its name, the ``model`` or the ``batch``."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class WeightTensor:
    """One weight tensor."""

    name: str
    weight: Tensor  # as received, two or more axes, the first one over units
    bias_name: str | None = None
    bias: Tensor | None = None
    depthwise: bool = False  # each unit sees one channel, and the layer is not the network's first

    @property
    def units(self) -> int:
        return int(self.weight.shape[0])

    @property
    def inputs(self) -> int:
        """Entries a unit."""
        return self.weight.numel() // self.units

    @property
    def rows(self) -> Float[Tensor, "n k"]:
        """The matrix, in float32 at least; a view where that needs no copy."""
        return working(self.weight).reshape(self.units, -1)

    def chunks(self, entries: int = CHUNK) -> Iterator[Float[Tensor, "m k"]]:
        """The matrix, some rows at a time."""
        for part in self.weight.split(max(1, entries // max(1, self.inputs))):
            yield working(part).reshape(len(part), -1)

    def by_rows(self, measure: Callable[[Float[Tensor, "m k"]], Sequence[Tensor]]) -> list[Float[Tensor, " n"]]:
        """What is measured of each row, some rows at a time."""
        return [torch.cat(parts) for parts in zip(*map(measure, self.chunks()), strict=True)]


def working(tensor: Tensor) -> Tensor:
    """Values in float32, or float64 where they came so."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def is_table(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is looked up rather than multiplied, as its name tells."""
    return name.rpartition(".")[2] == "bias" or (
        TABLE.search(name.lower()) is not None and MAPS.search(name.lower()) is None and tensor.dim() != 4
    )


def layers(state: Mapping[str, Tensor]) -> tuple[list[WeightTensor], list[Omission]]:
    """All weight matrices in the order of the state dict, and what could not be judged, with the reason."""
    found: list[WeightTensor] = []
    unjudged: list[Omission] = []
    for name, tensor in state.items():
        if tensor.dim() < 2 or not tensor.numel() or tensor.dtype == torch.bool:
            continue
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            unjudged.append(Omission(name, f"integers ({kind}) without their scale"))
        elif is_table(name, tensor) and _bias(name, tensor, state)[0] is None:  # what has a bias is multiplied by
            unjudged.append(Omission(name, "a table of rows to look up, not a layer"))
        elif not finite(working(tensor)):
            unjudged.append(Omission(name, "has entries that are not finite"))
        else:
            bias_name, bias = _bias(name, tensor, state)
            depthwise = bool(found) and tensor.dim() > 2 and tensor.shape[1] == 1 and tensor.shape[0] > 1
            found.append(WeightTensor(name, tensor, bias_name, bias, depthwise))
    return found, unjudged


def head(found: list[WeightTensor]) -> WeightTensor | None:
    """The last matrix of two axes: a classifier's last layer."""
    return next((layer for layer in reversed(found) if layer.weight.dim() == 2), None)


def too_few(layer: WeightTensor) -> Omission:
    return Omission(layer.name, f"{layer.units} unit{'s' if layer.units > 1 else ''}, too few to compare")


def comparable(
    state: Mapping[str, Tensor], *, units: int, inputs: int, last: str = ""
) -> tuple[list[WeightTensor], list[Omission]]:
    """Layers whose rows a rule can compare, and what it cannot judge. `units`, `inputs`: the fewest; `last`: why a
    network's `head` is left out; empty where it is not."""
    found, unjudged = layers(state)
    left_out = head(found) if last and len(found) > 1 else None
    kept: list[WeightTensor] = []
    for layer in found:
        if layer is left_out:
            unjudged.append(Omission(layer.name, last))
        elif layer.units < units:
            unjudged.append(too_few(layer))
        elif layer.inputs < inputs:
            unjudged.append(Omission(layer.name, f"rows of {layer.inputs}, too short to tell"))
        else:
            kept.append(layer)
    return kept, unjudged


def _bias(name: str, weight: Tensor, state: Mapping[str, Tensor]) -> tuple[str | None, Tensor | None]:
    prefix, dot, last = name.rpartition(".")
    other = prefix + dot + last.replace("weight", "bias")
    bias = state.get(other)
    fits = bias is not None and bias.shape == weight.shape[:1] and bias.is_floating_point() and finite(bias)
    return (other, bias) if fits else (None, None)
