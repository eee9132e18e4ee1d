"""Defences by what they do: those that do nothing, subclasses, repetitions, and one example where four are read."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn

from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, SecureAggregation
from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    Clip,
    ClipExamples,
    ClipLayers,
    Compose,
    Defense,
    FedCDP,
    GaussianNoise,
    LaplaceNoise,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    TopK,
)
from leakgauge.defenses.dp import Absolute, ClientDP
from leakgauge.defenses.steps import DefenseStep, Nonlinear
from leakgauge.tensors import Tensors, map_tensors
from same.readings import Perceptron, Reading, Weights, attacked, cells, pictures, share, unlike, weaker
from same.spellings import linear


@dataclass(frozen=True)
class Half(Defense):
    """Of one's own: all entries by a public factor."""

    factor: float = 0.5

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self._halved(tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Nonlinear(how=self._halved),)

    def _halved(self, tensors: Tensors) -> Tensors:
        return map_tensors(lambda t: self.factor * t, tensors)


def noise(sigma: float) -> GaussianNoise:
    return GaussianNoise(scale=Absolute(sigma=sigma))


def both(*parts: Defense) -> Compose:
    return Compose(parts)


def subclass(defense: Defense) -> Defense:
    """The same defence as an instance of an empty subclass."""
    made = copy.copy(defense)
    object.__setattr__(made, "__class__", type(f"My{type(defense).__name__}", (type(defense),), {}))
    return made


NOTHING: dict[str, Defense] = {
    "no defence": NoDefense(),
    "a composition of nothing": both(NoDefense()),
    "nothing twice": both(NoDefense(), both(NoDefense())),
    "clip far above": Clip(norm=1e9),
    "clip examples far above": ClipExamples(norm=1e9),
    "clip layers far above": ClipLayers(norm=1e9),
    "all of top-k": TopK(keep=1.0),
    "all of random-k": RandomK(keep=1.0),
    "no pruning": Prune(rate=1e-9),
    "own, times one": Half(factor=1.0),
}
"""Defences that send the gradient as it is."""

SAME: dict[str, tuple[Defense, Defense]] = {
    "clip and nothing": (both(Clip(norm=0.1), NoDefense()), Clip(norm=0.1)),
    "nothing and clip": (both(NoDefense(), Clip(norm=0.1)), Clip(norm=0.1)),
    "clip alone in a composition": (both(Clip(norm=0.1)), Clip(norm=0.1)),
    "clip twice": (both(Clip(norm=0.1), Clip(norm=0.1)), Clip(norm=0.1)),
    "clip, then tighter": (both(Clip(norm=0.1), Clip(norm=0.05)), Clip(norm=0.05)),
    "clip, then wider": (both(Clip(norm=0.1), Clip(norm=1.0)), Clip(norm=0.1)),
    "clip and all of top-k": (both(Clip(norm=0.1), TopK(keep=1.0)), Clip(norm=0.1)),
    "all of top-k and clip": (both(TopK(keep=1.0), Clip(norm=0.1)), Clip(norm=0.1)),
    "top-k twice": (both(TopK(keep=0.5), TopK(keep=0.5)), TopK(keep=0.5)),
    "clip examples twice": (both(ClipExamples(norm=0.1), ClipExamples(norm=0.1)), ClipExamples(norm=0.1)),
    "own half, clipped": (both(Half(), Clip(norm=0.01)), Clip(norm=0.01)),
    "own half": (Half(), Clip(norm=1e9)),
}
"""Pairs that leave an attacker the same."""

KNOWN: dict[str, Defense] = {
    "clip": Clip(norm=0.1),
    "clip twice": both(Clip(norm=0.1), Clip(norm=0.05)),
    "clip-layers": ClipLayers(norm=0.1),
    "clip-examples": ClipExamples(norm=0.1),
    "clip-examples, clip": both(ClipExamples(norm=0.1), Clip(norm=0.05)),
    "top-k": TopK(keep=0.5),
    "random-k": RandomK(keep=0.9, unbiased=True),
    "prune": Prune(rate=0.1),
    "noise": noise(1e-9),
    "clip, noise": both(Clip(norm=0.1), noise(1e-9)),
    "noise, clip": both(noise(1e-9), Clip(norm=0.1)),
    "clip-examples, noise": both(ClipExamples(norm=0.1), noise(1e-9)),
    "laplace": LaplaceNoise(scale=Absolute(sigma=1e-9)),
    "quantise": Quantise(levels=32767),
    "clip, quantise": both(Clip(norm=0.1), Quantise(levels=32767)),
    "qsgd": QSGD(levels=32767),
    "dp-sgd": DPSGD(noise_multiplier=1e-6, norm=0.1),
    "client-dp": ClientDP(noise_multiplier=1e-6, norm=0.1),
    "fed-cdp": FedCDP(noise_multiplier=1e-6, norm=0.1),
    "own half": Half(),
    "top-k, clip": both(TopK(keep=1.0), Clip(norm=0.1)),
}
"""Defences that leave a batch of four to be read, wholly or nearly."""

CLIENTS: dict[str, Protocol] = {
    "fedsgd": FedSGD(),
    "fedavg": FedAvg(lr=0.1),
    "momentum": FedAvg(lr=0.1, momentum=0.9, dampening=0.5),
    "nesterov and decay": FedAvg(lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "cohort of one": SecureAggregation(cohort=1),
    "proximal": LocalTraining(optimiser=SGD(lr=0.1), proximal=0.1),
    "clipped steps": LocalTraining(optimiser=SGD(lr=0.1), clip=0.1),
}


@cache
def net() -> nn.Module:
    weights = Weights.drawn()
    return Perceptron(linear(*weights.first), linear(*weights.head))


@cache
def read(defense: Defense, examples: int, client: Protocol = FedSGD()) -> Reading:
    return attacked(net(), pictures(examples), client=client, defense=defense)


@pytest.mark.parametrize(("name", "examples"), cells(NOTHING, fast={1: 1, 4: 8}))
def test_a_defense_that_does_nothing_is_none(name: str, examples: int) -> None:
    assert not unlike(read(NOTHING[name], examples), attacked(net(), pictures(examples)))


@pytest.mark.parametrize(("name", "examples"), cells(SAME, fast={1: 1, 4: 8}))
def test_two_ways_to_defend_are_one(name: str, examples: int) -> None:
    one, other = SAME[name]
    assert not unlike(read(one, examples), read(other, examples))


@pytest.mark.parametrize(("name", "examples"), cells(KNOWN, fast={1: 3, 4: 8}))
def test_a_subclass_is_its_base(name: str, examples: int) -> None:
    found = attacked(net(), pictures(examples), defense=subclass(KNOWN[name]))
    assert not unlike(found, read(KNOWN[name], examples))


def crossed() -> list[object]:
    return [
        pytest.param(client, defense, marks=share(4 if client == "fedsgd" else 1_000_000, client, defense))
        for client in CLIENTS
        for defense in KNOWN
    ]


@pytest.mark.parametrize(("client", "defense"), crossed())
def test_one_example_gets_what_four_get(client: str, defense: str) -> None:
    four, one = (read(KNOWN[defense], n, CLIENTS[client]) for n in (4, 1))
    share = Reading(four.certified // 4, (min(four.psnr),), four.labels, why=four.why)
    assert not weaker(one, share)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("defense", KNOWN)
def test_no_loop_is_read_less(client: str, defense: str) -> None:
    """Of one step: behind the same defence as from the gradient itself. Clips of a delta cut shorter."""
    if any(word in defense for word in ("clip", "dp", "noise", "laplace")):
        pytest.skip("acts on the length of what is sent")
    assert not weaker(read(KNOWN[defense], 4, CLIENTS[client]), read(KNOWN[defense], 4))
