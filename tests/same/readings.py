"""What an attacker, the lint and the counts make of a network, and which of two readings is the weaker."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.clients import FedSGD, client_update
from leakgauge.clients.protocol import Protocol
from leakgauge.data import InMemory
from leakgauge.defenses import Clip, Defense, GaussianNoise, NoDefense, RandomK, TopK
from leakgauge.defenses.dp import Absolute
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign
from leakgauge.observation import Attack, Knowledge, Reconstruction
from leakgauge.risk.count import Replay, replay
from leakgauge.risk.jacobian import count_layers
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import resolve_plan
from leakgauge.task import Batch, DataSpec, Task

INPUTS, UNITS, CLASSES = 48, 96, 5
SPEC = DataSpec(shape=(3, 4, 4), classes=CLASSES)
READ, CAP, NEAR = 30.0, 60.0, 3.0
"""dB from which on a picture counts as read, beyond which no difference counts, and what two readings may differ by."""

DEFENSES: dict[str, Defense] = {
    "none": NoDefense(),
    "clip": Clip(norm=0.1),
    "tiny noise": GaussianNoise(scale=Absolute(sigma=1e-9)),
    "top-k": TopK(keep=0.5),
    "random-k": RandomK(keep=0.5),
}
BY_ENTRY = ("top-k", "random-k")
"""Defences that leave something else of a gradient in another basis."""


@dataclass(frozen=True)
class Reading:
    """What came back of one batch.

    Attributes:
        certified: examples that the attack proved.
        psnr: of each example, best first, at most `CAP`; 0 where nothing came back.
        labels: whether the labels that it names are the batch's.
        tokens: of texts, right tokens less wrong ones, and whether they are counted, whole and in order.
        why: how it ended, for a failure's message.
    """

    certified: int
    psnr: tuple[float, ...]
    labels: bool
    tokens: tuple[int, ...] = ()
    why: str = ""


def weaker(one: Reading, other: Reading, *, labels: bool = True) -> str:
    """In which respect `one` says less than `other`, in words; empty where in none."""
    if one.certified < other.certified:
        return f"{one.certified} certified for {other.certified}: {one.why}"
    for here, there in zip(one.psnr, other.psnr, strict=True):
        if there >= READ and here < there - NEAR:
            return f"{here:.1f} dB for {there:.1f}: {one.why}"
    if labels and other.labels and not one.labels and other.psnr[-1] >= READ:
        return f"labels are lost: {one.why}"
    if one.tokens < other.tokens or any(a < b for a, b in zip(one.tokens, other.tokens, strict=False)):
        return f"tokens {one.tokens} for {other.tokens}: {one.why}"
    return ""


def unlike(one: Reading, other: Reading) -> str:
    """In which respect one of two readings says less than the other; the same function is read the same both ways."""
    back = weaker(other, one)
    return weaker(one, other) or (back and f"the plain form is weaker: {back}")


def pictures(examples: int, seed: int = 5, spec: DataSpec = SPEC) -> Batch:
    """Random pictures, and labels of every class in turn."""
    drawn = torch.rand(examples, *spec.shape, generator=torch.Generator().manual_seed(seed))
    return Batch(drawn, torch.arange(examples) % spec.classes)


def reading(found: Reconstruction, batch: Batch, spec: DataSpec = SPEC) -> Reading:
    """What a result is worth beside the batch that it is of."""
    count = len(batch)
    certified = count if found.status.value == "exact" else 0
    if found.certified is not None:
        certified = int(found.certified.sum())
    right = found.labels is not None and sorted(found.labels.tolist()) == sorted(batch.labels.tolist())
    tokens: tuple[int, ...] = ()
    if (read := found.tokens) is not None:
        there = set(batch.inputs.long().flatten().tolist())
        named = set(read.counts.sum(0).nonzero().flatten().tolist())
        tokens = (len(named & there) - len(named - there), read.counted, read.whole, read.order is not None)
    psnr = [0.0] * count
    if found.inputs is not None and not spec.is_text:
        slots = assign(found.inputs, batch.inputs, data_range=spec.range, low=spec.low)
        there = batch.inputs[list(slots.matched)]
        psnr = PSNR(data_range=spec.range)(slots.take(found.inputs), there).clamp(0, CAP).tolist()
        psnr += [0.0] * (count - len(psnr))
    tried = "; ".join(f"{t.name} {t.status.value}: {t.why}" for t in found.tried) or found.message
    return Reading(certified, tuple(sorted(psnr, reverse=True)), right, tokens, f"{found.status.value} ({tried[:300]})")


@lru_cache(maxsize=8)
def task_of(net: nn.Module, spec: DataSpec) -> Task:
    """One for all updates of a network, which so is looked at once."""
    return Task.of(net, spec)


def attacked(
    net: nn.Module,
    batch: Batch,
    *,
    client: Protocol = FedSGD(),
    defense: Defense | None = None,
    using: Attack | None = None,
    knows: Knowledge | None = None,
    spec: DataSpec = SPEC,
    evaluations: int = 60,
) -> Reading:
    """One client's update, and what an attacker who knows client, defence and count makes of it."""
    task = task_of(net, spec)
    update = client_update(task, client, batch, Draws(seed=1), defense=defense)
    known = knows or Knowledge(local_training=client, example_count=len(batch), defense=defense)
    if defense is not None:
        task = defense.on_task(task)
    found = lg.attack(task, update, knows=known, using=using, budget=lg.Budget(gradient_evaluations=evaluations))
    return reading(found, batch, spec)


def graded(net: nn.Module, examples: int, spec: DataSpec = SPEC) -> frozenset[tuple[str, str]]:
    """Rules that the lint finds broken in an audit of undefended pictures, and how gravely."""
    drawn = pictures(examples + 40, spec=spec)
    plan = {
        "model": net,
        "data": {"source": InMemory(inputs=drawn.inputs, labels=drawn.labels), "batch": examples, "batches": 1},
        "attacks": ["closed-form"],
        "defenses": ["none"],
        "gallery": 3,
    }
    return frozenset((finding.rule, finding.severity.value) for finding in lint_plan(resolve_plan(plan)))


def linted(net: nn.Module, examples: int) -> frozenset[str]:
    """The rules alone."""
    return frozenset(rule for rule, _ in graded(net, examples))


@dataclass(frozen=True)
class Counted:
    """What ``leakgauge count`` says of four pictures: unknowns, the rank's bound, and what peeling would read."""

    unknowns: int
    bound: int
    read: int | None


def counted(net: nn.Module, examples: int = 4) -> Counted:
    """The counts of a network and a batch."""
    task = task_of(net, SPEC)
    told = count_layers(task, examples)
    replayed = replay(task, pictures(examples), torch.Generator().manual_seed(0))
    return Counted(told.unknowns, told.bound, replayed.read if isinstance(replayed, Replay) else None)


@dataclass(frozen=True)
class Weights:
    """Of a perceptron with one hidden layer."""

    first: tuple[Tensor, Tensor]
    head: tuple[Tensor, Tensor]

    @staticmethod
    def drawn(seed: int = 0) -> Weights:
        """As a new layer has them, to the scale."""
        draw = torch.Generator().manual_seed(seed)

        def layer(out: int, into: int) -> tuple[Tensor, Tensor]:
            return torch.randn(out, into, generator=draw) / into**0.5, 0.1 * torch.randn(out, generator=draw)

        return Weights(layer(UNITS, INPUTS), layer(CLASSES, UNITS))


class Perceptron(nn.Module):
    """Pictures to rows, a layer, ReLU and a head, each as it is written by whoever gives it; with `wide`, a linear
    path beside it all."""

    def __init__(
        self,
        first: nn.Module,
        head: nn.Module,
        relu: Callable[[Tensor], Tensor] = torch.relu,
        rows: Callable[[Tensor], Tensor] = lambda x: x.flatten(1),
        wide: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.rows, self.first, self.relu, self.head, self.wide = rows, first, relu, head, wide

    def forward(self, x: Tensor) -> Tensor:
        x = self.rows(x)
        out: Tensor = self.head(self.relu(self.first(x)))
        return out if self.wide is None else out + self.wide(x)


def share(of: int, *cell: object) -> list[pytest.MarkDecorator]:
    """Marks of a cell of a table of which one in so many, by the hash of its name, is in the fast suite."""
    return [] if zlib.crc32(repr(cell).encode()) % of == 0 else [pytest.mark.slow]


def cells(names: Iterable[str], *, fast: dict[int, int]) -> list[Any]:
    """(name, examples) for a table; `fast` is examples → one in how many is in the fast suite."""
    return [pytest.param(name, n, marks=share(of, name, n)) for name in names for n, of in fast.items()]
