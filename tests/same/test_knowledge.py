"""Who knows more, may do more or starts nearer never ends lower."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from torch import nn

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD
from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import ClipExamples, Defense, GaussianNoise, Prune, RelativeToNorm
from leakgauge.observation import Knowledge
from leakgauge.registry import ATTACKS
from same.readings import CAP, DEFENSES, Perceptron, Reading, Weights, attacked, cells, pictures, weaker
from same.spellings import LAYERS, Spelled, linear

CLIENTS: dict[str, Protocol] = {
    "fedsgd": FedSGD(),
    "fedavg": FedAvg(lr=0.1),
    "two steps": FedAvg(lr=0.1, epochs=2),
}
BEHIND: dict[str, Defense] = {
    **DEFENSES,
    "clip-examples": ClipExamples(norm=0.1),
    "prune": Prune(rate=0.3),
    "noise as large as the update": GaussianNoise(scale=RelativeToNorm(1.0)),
}


READERS = ("closed-form", "peeling", "rank-one", "span-fit", "span-read")


@cache
def net() -> nn.Module:
    weights = Weights.drawn()
    return Perceptron(linear(*weights.first), linear(*weights.head))


def worse(more: Reading, less: Reading) -> str:
    """As `weaker`, and of searches too: the mean falls by no more than three decibels."""
    fell = sum(less.psnr) / len(less.psnr) - sum(more.psnr) / len(more.psnr)
    return weaker(more, less, labels=False) or (f"{fell:.1f} dB less: {more.why}" if fell > 3 else "")


@cache
def read(client: str, defense: str, examples: int, lacks: tuple[str, ...] = (), evaluations: int = 60) -> Reading:
    """With the labels known, less what is lacking."""
    batch = pictures(examples)
    behind = None if defense == "none" else BEHIND[defense]
    all_ = Knowledge(batch.labels, examples, CLIENTS[client], defense=behind)
    knows = replace(all_, **dict.fromkeys(lacks))  # type: ignore[arg-type]
    return attacked(net(), batch, client=CLIENTS[client], defense=behind, knows=knows, evaluations=evaluations)


@pytest.mark.parametrize("lacks", ["labels", "defense"])
@pytest.mark.parametrize(("defense", "examples"), cells(BEHIND, fast={1: 1, 4: 8}))
@pytest.mark.parametrize("client", [pytest.param(c, marks=[pytest.mark.slow] * (c != "fedsgd")) for c in CLIENTS])
def test_more_knowledge(client: str, defense: str, examples: int, lacks: str) -> None:
    if lacks == "defense" and defense in ("none", "clip"):
        lacks = "labels"
    assert not worse(read(client, defense, examples), read(client, defense, examples, (lacks,)))


@pytest.mark.slow
@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("defense", BEHIND)
@pytest.mark.parametrize("client", CLIENTS)
def test_more_budget(client: str, defense: str, examples: int) -> None:
    ends = [read(client, defense, examples, evaluations=n) for n in (40, 120, 400)]
    assert not worse(ends[1], ends[0])
    assert not worse(ends[2], ends[1])


@pytest.mark.parametrize("defense", ["none", "clip"])
@pytest.mark.parametrize(("name", "examples"), cells(READERS, fast={1: 1, 4: 8}))
def test_auto_gets_what_a_reader_gets(name: str, defense: str, examples: int) -> None:
    batch, behind = pictures(examples), BEHIND[defense]
    own = attacked(net(), batch, defense=behind, using=ATTACKS[name].build())
    assert not weaker(read("fedsgd", defense, examples, ("labels",)), own, labels=False)


@pytest.mark.slow
@pytest.mark.parametrize("examples", [1, 4])
def test_a_better_start(examples: int) -> None:
    """Behind noise as large as the update a search from what was read ends no lower than one that missed the read."""
    batch, behind = pictures(examples), BEHIND["noise as large as the update"]
    ends = []
    for first in (linear, unread):
        weights = Weights.drawn()
        made = Perceptron(first(*weights.first), linear(*weights.head))
        ends.append(attacked(made, batch, defense=behind, using=Auto(), evaluations=300))
    assert not worse(*ends)


def unread(*layer: object) -> nn.Module:
    """A layer that no reader finds: squares of the input enter it too, with weight zero."""
    return Spelled(LAYERS["features and squares"], *layer)  # type: ignore[arg-type]


def test_a_batch_behind_factors_of_a_low_rank_is_read_for_more_evaluations() -> None:
    """No row was one example's, so that nothing was tried: four of 141 to 145 dB are in the span of eight rows."""
    weights = Weights.drawn()
    made = Perceptron(Spelled(LAYERS["low rank merged"], *weights.first), linear(*weights.head))
    found = attacked(made, pictures(4), evaluations=240)
    assert found.certified == 4
    assert min(found.psnr) == CAP
