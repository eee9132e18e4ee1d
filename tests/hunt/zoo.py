"""Small networks of every family, of which each part can be written in other words, and what they take in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.registry import MODELS
from leakgauge.task import Batch, DataSpec
from same import (
    attention,
    eighth,
    eleventh,
    fifteenth,
    fifth,
    fourteenth,
    ninth,
    seventh,
    sixth,
    tenth,
    thirteenth,
    twelfth,
)
from same.further import HEADS, LAYERS
from same.spellings import ACTIVATIONS, FLATTENINGS, PATCHES, TABLES, Patched, Spelled, Table, linear

CLASSES, WORDS, LENGTH = 5, 30, 6
SIZE, WIDTH, UNITS = 16, 8, 64
LARGEST = 60_000
"""Parameters of a registered model that is small enough to be attacked by the hundred."""


def _joined(*pools: Mapping[str, Any]) -> dict[str, Any]:
    return {word: how for pool in pools for word, how in pool.items()}


FRESH: dict[str, Mapping[str, object]] = {
    "first": fifteenth.LAYERS,
    "head": fifteenth.HEADS,
    "relu": fifteenth.ACTIVATIONS,
    "rows": fifteenth.FLATTENINGS,
    "table": fifteenth.TABLES,
    "patch": fifteenth.PATCHES,
    "attention": fifteenth.ATTENTION,
}
"""Words that nobody looks at who mends."""

SEEN = (fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth, thirteenth, fourteenth)
"""Lists that were fresh once, and are looked at now."""

POOLS: dict[str, Mapping[str, Any]] = {
    "first": _joined(LAYERS, *(words.LAYERS for words in SEEN), FRESH["first"]),
    "head": _joined(HEADS, *(words.HEADS for words in SEEN), FRESH["head"]),
    "relu": _joined(ACTIVATIONS, *(words.ACTIVATIONS for words in SEEN), FRESH["relu"]),
    "rows": _joined(FLATTENINGS, *(words.FLATTENINGS for words in SEEN), FRESH["rows"]),
    "table": _joined(TABLES, *(words.TABLES for words in SEEN), FRESH["table"]),
    "patch": _joined(PATCHES, *(words.PATCHES for words in SEEN), FRESH["patch"]),
    "attention": _joined(attention.WORDS, attention.FRESH, fourteenth.ATTENTION, FRESH["attention"]),
}
"""Field of a `Net` → the words that it may be written in; the empty one is the plain form."""
PARTS = {"perceptron": "first head relu rows", "convolution": "first head relu rows", "texts": "head table"}
PARTS |= {"patches": "head patch", "transformer": "head attention", "decoder": "head attention"}
TEXTS = ("texts", "decoder")
NORMS = ("", "layer", "batch", "after")


def unseen(field: str, word: str) -> bool:
    """Whether it is one of the words that nobody looks at who mends."""
    return word in FRESH[field]


class Rectified(nn.Module):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = POOLS["relu"][self.word](x)
        return out


class Rows(nn.Module):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = POOLS["rows"][self.word](x)
        return out


class Beside(nn.Module):
    """A network with a linear path beside it."""

    def __init__(self, net: nn.Module, wide: nn.Module) -> None:
        super().__init__()
        self.net, self.wide = net, wide

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) + self.wide(x.flatten(1))
        return out


@dataclass(frozen=True)
class Net:
    """A network, and how its parts are written.

    Attributes:
        family: one of `PARTS`, or a registered model.
        first, head, relu, rows, table, patch, attention: words out of `POOLS`; empty is plain.
        norm: before (`layer`, `batch`) or behind (`after`) the first activation.
        deep: one hidden layer more.
        wide: a linear path beside it.
        units: of the first layer.
    """

    family: str = "perceptron"
    first: str = ""
    head: str = ""
    relu: str = ""
    rows: str = ""
    table: str = ""
    patch: str = ""
    attention: str = ""
    norm: str = ""
    deep: bool = False
    wide: bool = False
    units: int = 64

    @property
    def words(self) -> tuple[str, ...]:
        """Fields that may be written in other words."""
        return tuple(PARTS.get(self.family, "first head relu").split())

    @property
    def spec(self) -> DataSpec:
        """Of one example."""
        if self.family in TEXTS:
            return DataSpec((LENGTH,), CLASSES, high=WORDS - 1.0, vocabulary=WORDS)
        if self.family == "transformer":
            return DataSpec((3, 8, 8), CLASSES)
        if self.family in PARTS:
            return DataSpec((3, 4, 4), CLASSES)
        return DataSpec((3, SIZE, SIZE), CLASSES, mean=(0.4, 0.5, 0.6), std=(0.25, 0.2, 0.3))

    def build(self, seed: int) -> nn.Module:
        """With weights drawn from the seed, the same for every way to write it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._spelled(self._plain())

    def batch(self, examples: int, seed: int) -> Batch:
        """Random examples, and labels of one class after the other."""
        draw = torch.Generator().manual_seed(seed)
        labels = (torch.arange(examples) + seed) % CLASSES
        if self.family in TEXTS:
            return Batch(torch.randint(WORDS, (examples, LENGTH), generator=draw).float(), labels)
        return Batch(torch.rand(examples, *self.spec.shape, generator=draw), labels)

    def _plain(self) -> nn.Module:
        if self.family == "texts":
            return Table(
                torch.randn(WORDS, 16), nn.Linear(16, CLASSES), POOLS["table"][self.table] if self.table else None
            )
        if self.family == "patches":
            return Patched(24, 2, self.spec.shape, CLASSES, POOLS["patch"][self.patch] if self.patch else None)
        if self.family == "transformer":
            return attention.Block(attention.Cut(3, 4, UNITS), 4, UNITS, CLASSES, causal=False)
        if self.family == "decoder":
            return attention.Block(attention.Looked(WORDS, UNITS), LENGTH, UNITS, CLASSES, causal=True)
        if self.family not in PARTS:
            return registered(self.family)
        into, start = 48, []
        if self.family == "convolution":
            into, start = 6 * 16, [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()]
        before = {"layer": [nn.LayerNorm(self.units)], "batch": [nn.BatchNorm1d(self.units).eval()]}.get(self.norm, [])
        after = [nn.LayerNorm(self.units)] if self.norm == "after" else []
        hidden = [nn.Linear(self.units, 32), nn.ReLU()] if self.deep else []
        last = nn.Linear(32 if self.deep else self.units, CLASSES)
        rows = Rows(self.rows or "flatten")
        return nn.Sequential(*start, rows, nn.Linear(into, self.units), *before, nn.ReLU(), *after, *hidden, last)

    def _spelled(self, net: nn.Module) -> nn.Module:
        layers = [name for name, part in net.named_modules() if type(part) is nn.Linear]
        for name, part in list(net.named_modules()):
            word = self.head if layers and name == layers[-1] else self.first
            if type(part) is nn.Linear and word and part.bias is not None:
                table = POOLS["head" if name == layers[-1] else "first"]
                _put(net, name, Spelled(table[word], part.weight.detach(), part.bias.detach()))
            elif type(part) is nn.ReLU and self.relu:
                _put(net, name, Rectified(self.relu))
            elif type(part) is attention.Attention and self.attention:
                _put(net, name, POOLS["attention"][self.attention](part))
        return Beside(net, linear(torch.randn(CLASSES, 48) / 7, torch.zeros(CLASSES))) if self.wide else net


def _put(net: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(net.get_submodule(parent), own, part)


def registered(name: str) -> nn.Module:
    """A model of the registry as small as its arguments make it."""
    build = MODELS[name].build
    small: dict[str, Any] = {"classes": CLASSES, "channels": 3, "size": SIZE, "width": WIDTH, "shape": (3, SIZE, SIZE)}
    stated = inspect.signature(build).parameters
    if "hidden" in stated:
        small["hidden"] = UNITS if isinstance(stated["hidden"].default, int) else [UNITS]
    made: nn.Module = build(**{k: v for k, v in small.items() if k in stated})
    return made


@cache
def small_models() -> tuple[str, ...]:
    """Registered models that are small enough."""
    with torch.device("meta"):
        sizes = {e.name: sum(p.numel() for p in registered(e.name).parameters()) for e in MODELS}
    return tuple(name for name, size in sizes.items() if size <= LARGEST)


def drawn(rng: Random, *, held_out: bool) -> Net:
    """A random network, with the words that are to be looked at."""
    family = rng.choice(
        ["perceptron"] * 5 + [*(name for name in PARTS if name != "perceptron"), rng.choice(small_models())]
    )
    net = Net(family)
    if family in ("perceptron", "convolution"):
        norm, wide = rng.choice(NORMS + ("",) * 4), family == "perceptron" and rng.random() < 0.1
        net = replace(net, norm=norm, deep=rng.random() < 0.25, wide=wide, units=rng.choice((32, 64, 96)))
    return reworded(net, rng, 0.15, held_out=held_out)


def pool(field: str, *, held_out: bool) -> list[str]:
    """Words of a field: those that are looked at, or those that are not."""
    return [word for word in POOLS[field] if unseen(field, word) is held_out]


def reworded(net: Net, rng: Random, chance: float, *, held_out: bool) -> Net:
    """The same function, each part in other words with that chance."""
    words = {f: rng.choice(pool(f, held_out=held_out) or [""]) for f in net.words if rng.random() < chance}
    return replace(net, **words)  # type: ignore[arg-type]
