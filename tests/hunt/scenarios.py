"""A client, a defence and what an attacker knows, drawn from what is registered; and what is read of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

import leakgauge as lg
from hunt.zoo import Net, drawn
from leakgauge.clients import FedSGD, client_update
from leakgauge.clients.client import trained_on
from leakgauge.clients.optimisers import CosineRate
from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import Compose, Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, said
from leakgauge.metrics import PSNR
from leakgauge.observation import Attack, Knowledge, Reconstruction, Status
from leakgauge.registry import ATTACKS, CLIENTS, DEFENSES, OPTIMISERS
from leakgauge.task import Batch, Task
from leakgauge.tensors import map_tensors
from same.readings import Reading, reading

SURE = 40.0
"""dB that a certified picture has at least."""

STRENGTHS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "clip": lambda r: {"norm": r.choice((0.05, 1.0, 1e3))},
    "clip-examples": lambda r: {"norm": r.choice((0.05, 1.0, 1e3))},
    "client-dp": lambda r: {"noise_multiplier": r.choice((1e-6, 1e-2)), "norm": 0.1},
    "dp-sgd": lambda r: {"noise_multiplier": r.choice((1e-6, 1e-2)), "norm": 0.1},
    "fed-cdp": lambda r: {"noise_multiplier": r.choice((1e-6, 1e-2)), "norm": 0.1},
    "noise": lambda r: r.choice(({"sigma": 1e-9}, {"relative": 1e-3}, {"relative": 0.1})),
    "laplace": lambda r: r.choice(({"sigma": 1e-9}, {"relative": 1e-3})),
    "topk": lambda r: {"keep": r.choice((1.0, 0.5, 0.1))},
    "random-k": lambda r: {"keep": r.choice((1.0, 0.5)), "unbiased": r.random() < 0.5},
    "prune": lambda r: {"rate": r.choice((0.1, 0.5))},
    "quantise": lambda r: {"levels": r.choice((3, 255, 32767))},
    "qsgd": lambda r: {"levels": r.choice((3, 255, 32767))},
    "precode": lambda _: {"size": 16},
    "secure-aggregation": lambda r: {"cohort": r.choice((1, 2))},
    "fedavg": lambda r: (
        {"lr": 0.1, "epochs": r.choice((1, 1, 1, 2)), "weight_decay": r.choice((0.0, 5e-4))}
        | r.choice(({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}))
    ),
    "local-training": lambda r: (
        {"optimiser": optimiser(r), "accumulate": r.choice((1, 1, 2))}
        | {
            "batch_size": r.choice((None, None, 1)),
            "clip": r.choice((None, None, 0.1)),
            "proximal": r.choice((0.0, 0.1)),
            "schedule": r.choice(((), (), (1.0, 0.5), CosineRate(cosine=4))),
            "ema": r.choice((None, None, 0.9)),
        }
    ),
    "sgd": lambda r: {"lr": 0.1, "momentum": r.choice((0.0, 0.9))},
}
"""Arguments of registered parts; those that are not named here are built without any."""


def built(registry: Any, name: str, rng: Random) -> Any:
    """A registered part with drawn arguments."""
    return registry[name].build(**STRENGTHS.get(name, lambda _: {})(rng))


def names(registry: Any) -> list[str]:
    """What is registered today."""
    return [entry.name for entry in registry]


NEED_MORE = {"server-read": "a dishonest server"}
"""Attacks that no scenario can run."""


def recipes() -> list[str]:
    """Attacks that `auto` must be as good as."""
    return [name for name in names(ATTACKS) if name not in NEED_MORE and name != "auto"]


def attack(name: str) -> Attack:
    """A registered attack; one that drives another is given a search."""
    entry = ATTACKS[name]
    driven = {"attack": ATTACKS["dlg"].build()} if "attack" in entry.parameters else {}
    made: Attack = entry.build(**driven)
    return made


def optimiser(rng: Random) -> Any:
    return built(OPTIMISERS, rng.choice(["sgd"] * 4 + names(OPTIMISERS)), rng)


def client(rng: Random) -> Protocol:
    """Any registered one; half of the time the plain gradient."""
    made: Protocol = built(CLIENTS, rng.choice(["fedsgd"] * len(names(CLIENTS)) + names(CLIENTS)), rng)
    return made


def defense(rng: Random) -> Defense:
    """Any registered one, none in a third of the cases, a composition of two in a tenth."""
    if rng.random() < 1 / 3:
        return NoDefense()
    one: Defense = built(DEFENSES, rng.choice(names(DEFENSES)), rng)
    return Compose((one, built(DEFENSES, rng.choice(names(DEFENSES)), rng))) if rng.random() < 0.1 else one


@dataclass(frozen=True)
class Scenario:
    """One client, one update, one attacker.

    Attributes:
        lacks: fields of the knowledge that the attacker is not given; draws and public data never are.
        using: name of the attack.
        evaluations: its budget.
        wide_wire: whether the update's numbers come in float64.
        seed: of weights, examples and draws.
        reverse: whether the client holds its examples the other way round.
        luck: the attacker's seed.
        only: of the examples, those that the client holds; empty is all.
    """

    net: Net = field(default_factory=Net)
    client: Protocol = field(default_factory=FedSGD)
    defense: Defense = field(default_factory=NoDefense)
    examples: int = 1
    lacks: tuple[str, ...] = ("labels",)
    using: str = "auto"
    evaluations: int = 60
    wide_wire: bool = False
    seed: int = 0
    reverse: bool = False
    luck: int = 0
    only: tuple[int, ...] = ()

    @staticmethod
    def drawn(rng: Random, *, held_out: bool = False) -> Scenario:
        """A random one that a client can run: the first that is not refused."""
        for _ in range(50):
            made = Scenario(
                drawn(rng, held_out=held_out),
                client(rng),
                defense(rng),
                rng.choice((1, 1, 2, 4)),
                () if rng.random() < 0.3 else ("labels",),
                wide_wire=rng.random() < 0.1,
                seed=rng.randrange(10**6),
            )
            if not made.observed()[0].startswith("refused"):
                return made
        raise AssertionError("fifty scenarios in a row are refused")

    def anew(self, seed: int) -> Scenario:
        """With other weights, examples and draws."""
        return replace(self, seed=seed)

    @property
    def batch(self) -> Batch:
        """The client's examples."""
        made = self.net.batch(self.examples, self.seed)
        if self.only:
            return made.take(torch.tensor(self.only))
        return made.take(torch.arange(self.examples - 1, -1, -1)) if self.reverse else made

    @property
    def truth(self) -> Batch:
        """As the client trained on them."""
        return trained_on(self.client, self.batch, Draws(self.seed), self.defense)

    def observed(self) -> tuple[str, Any, Any, Any]:
        """Why it is refused, else empty; task, update, knowledge."""
        try:
            task = task_of(self.net, self.seed)
            update = client_update(task, self.client, self.batch, Draws(self.seed), defense=self.defense)
        except FOREIGN as error:  # what somebody's network raises
            return f"refused: {said(error)}", None, None, None
        if self.wide_wire:
            update = replace(update, tensors=map_tensors(lambda t: t.double(), update.tensors))
        known = Knowledge(self.batch.labels, len(self.batch), self.client, defense=self.defense)
        return "", self.defense.on_task(task), update, replace(known, **dict.fromkeys(self.lacks))  # type: ignore

    def result(self) -> Reconstruction | str:
        """What the attack gives back, or why nobody runs it. The last ones are kept."""
        return _result(self)

    def _attacked(self) -> Reconstruction | str:
        refused, task, update, knows = self.observed()
        if refused:
            return refused
        budget, using = lg.Budget(gradient_evaluations=self.evaluations), attack(self.using)
        return lg.attack(task, update, using=using, knows=knows, budget=budget, seed=self.luck)

    def read(self) -> Reading:
        """Beside the truth."""
        return _read(self)


@lru_cache(maxsize=16)
def task_of(net: Net, seed: int) -> Task:
    """One for all scenarios of a network, which so looks at it once."""
    return Task.of(net.build(seed), net.spec)


@lru_cache(maxsize=64)
def _result(scenario: Scenario) -> Reconstruction | str:
    return scenario._attacked()


@cache
def _read(scenario: Scenario) -> Reading:
    found = scenario.result()
    if isinstance(found, str):
        return Reading(-1, (0.0,) * scenario.examples, False, why=found)
    truth, spec = scenario.truth, scenario.net.spec
    if truth.labels.is_floating_point():
        truth = Batch(truth.inputs, truth.labels.argmax(1))
    read = reading(found, truth, spec)
    if spec.is_text and not torch.equal(truth.inputs, truth.inputs.round()):
        return replace(read, tokens=())  # of mixtures, which are in no text: to name them is no read
    return read


def wrong(scenario: Scenario) -> str:
    """Pictures or tokens that are certified and are none of the client's."""
    found = scenario.result()
    if isinstance(found, str):
        return ""
    if scenario.net.spec.is_text:
        return _wrong_tokens(found, scenario.truth.inputs)
    if found.inputs is None:
        return ""
    sure = torch.full((len(found.inputs),), found.status.value == "exact")
    sure = sure if found.certified is None else found.certified
    truth = scenario.truth.inputs
    near = [
        float(PSNR(data_range=scenario.net.spec.range)(x.expand_as(truth).to(truth), truth).max()) for x in found.inputs
    ]
    off = [f"{psnr:.1f} dB" for psnr, certain in zip(near, sure.tolist(), strict=True) if certain and psnr < SURE]
    return f"certified, but the nearest of the client's pictures is at {', '.join(off)}" if off else ""


def _wrong_tokens(found: Reconstruction, truth: Tensor) -> str:
    read = found.tokens
    if read is None or found.status is not Status.EXACT:
        return ""
    if not torch.equal(truth, truth.round()):
        return "certified, and what the client trained on are no texts"
    named, there = set(read.counts.sum(0).nonzero().flatten().tolist()), set(truth.long().flatten().tolist())
    told = f"certified, but tokens {sorted(named - there)[:5]} are in no text" * bool(named - there)
    told += f"said to be all, but {sorted(there - named)[:5]} occur too" * bool(read.whole and there - named)
    if read.order is not None and sorted(read.order.tolist()) != sorted(truth.long().tolist()):
        told += "certified in another order"
    count = read.counts.sum(0).tolist() != truth.long().flatten().bincount(minlength=read.counts.shape[1]).tolist()
    return told + "certified with other counts" * (read.counted and count)
