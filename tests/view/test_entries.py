"""The error model of entries, against updates whose exact values are known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.batch import Batch, DataSpec
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.defenses import (
    QSGD,
    Clip,
    Compose,
    Defense,
    NoDefense,
    Quantise,
    RandomK,
    Soteria,
    TopK,
    laplace,
    noise,
)
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update
from leakgauge.view.entries import SentTensor, filled, relative_rounding, sent_decay

SPEC = DataSpec((1, 6, 6), 4)


def task() -> Task:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 60), nn.ReLU(), nn.Linear(60, 4))
    return Task.of(net, SPEC)


def batch(n: int = 3) -> Batch:
    return Batch(torch.rand((n, *SPEC.shape), generator=torch.Generator().manual_seed(1)), torch.arange(n) % 4)


def seen(client: Protocol, defense: Defense, wire: torch.dtype | None = None) -> tuple[Observation, Tensors]:
    """What came over the wire, and the multiple of the client's own gradient that its one step is."""
    t, b = task(), batch()
    sent = client_update(t, client, b, Draws(1), defense=defense)
    if wire is not None:
        sent = Update({k: v.to(wire).to(v) for k, v in sent.tensors.items()}, sent.header)
    told = client.linear(len(b))
    assert told is not None
    gradient = client_update(t, FedSGD(), b, Draws(1)).tensors
    exact = map_tensors(lambda g: sum(told.weights) * g.double(), gradient)
    known = Knowledge(example_count=len(b), local_training=client, defense=defense)
    return Observation(t, sent, known), exact


CLIENTS = (
    FedSGD(),
    FedAvg(lr=0.1),
    FedAvg(lr=1e-3),
    FedAvg(lr=0.1, momentum=0.9, nesterov=True),
)
DEFENSES = (
    NoDefense(),
    noise(sigma=1e-4),
    laplace(sigma=1e-4),
    Quantise(levels=255),
    QSGD(levels=255),
    TopK(keep=0.5),
    RandomK(keep=0.7, unbiased=True),
    Compose((Quantise(levels=1023), noise(sigma=1e-4))),
    Compose((TopK(keep=0.5), noise(sigma=3e-8))),
    Compose((Soteria(prune=60.0), noise(sigma=3e-8))),
)


@pytest.mark.parametrize("wire", [None, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
@pytest.mark.parametrize("client", CLIENTS, ids=repr)
def test_every_seen_entry_lies_within_its_errors(client: Protocol, defense: Defense, wire: torch.dtype | None) -> None:
    observation, exact = seen(client, defense, wire)
    for name, meant in exact.items():
        entries = SentTensor.of(observation, name)[...]
        off = (entries.value - meant).abs()
        allowed = entries.hard + 20 * entries.sigma  # Laplace noise of 20 deviations is one in 10¹²
        which = entries.sent_beyond(allowed)
        assert bool((off <= allowed)[which].all()), name
        assert bool((entries.error > 0)[which & (entries.value != 0)].all())


@pytest.mark.parametrize("part", [0, slice(3, 9), (slice(None), slice(4, 7)), ...], ids=repr)
def test_a_part_is_that_part_of_the_whole(part: object) -> None:
    observation, _ = seen(FedAvg(lr=0.1), RandomK(keep=0.7, unbiased=True))
    sent = SentTensor.of(observation, "1.weight")
    whole, some = sent[...], sent[part]
    assert torch.equal(whole.value[part], some.value)
    assert torch.equal(whole.error[part], some.error)


DECAY = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-3}


@pytest.mark.parametrize(
    ("client", "defense", "found"),
    [
        (FedAvg(**DECAY), NoDefense(), True),
        (FedAvg(**DECAY), Clip(norm=1e-2), True),
        (FedAvg(**DECAY), Compose((Clip(norm=1e-2), noise(sigma=1e-9))), True),
        (LocalTraining(optimiser=FedAvg(**DECAY).optimiser, clip=0.1), NoDefense(), True),
        (SecureAggregation(cohort=3, client=FedAvg(**DECAY)), Clip(norm=1e-2), True),
        (FedAvg(**DECAY), TopK(keep=0.5), True),
        (FedAvg(**DECAY), RandomK(keep=0.7, unbiased=True), True),
        (FedAvg(epochs=2, **DECAY), NoDefense(), True),
        (FedAvg(epochs=2, **DECAY), Clip(norm=1e-2), False),
    ],
    ids=repr,
)
def test_what_decay_adds_is_taken_off_where_it_is_known(client: Protocol, defense: Defense, found: bool) -> None:
    """Rows of units that no example drives have no gradient."""
    observation, _ = seen(client, defense)
    share = sent_decay(observation)
    assert (share is not None) == found
    if not found:
        return
    t, b = observation.task, batch()
    with torch.no_grad():
        silent = (t.module[1](b.inputs.flatten(1)) <= 0).all(0)  # type: ignore[index]
    assert bool(silent.any())
    entries = SentTensor.of(observation, "1.weight")[silent.nonzero()[:, 0]]
    assert bool((entries.value.abs() <= 2 * entries.hard + 6 * entries.sigma).all())


def test_a_coarser_wire_or_smaller_steps_are_rounded_more() -> None:
    units = [relative_rounding(seen(FedSGD(), NoDefense(), wire)[0])[0] for wire in (None, torch.float16)]
    assert 0 < units[0] < units[1]
    weights = [relative_rounding(seen(FedAvg(lr=lr), NoDefense())[0])[1] for lr in (0.1, 1e-3)]
    assert 0 < weights[0] < weights[1]
    assert relative_rounding(seen(FedSGD(), NoDefense())[0])[1] == 0


@pytest.mark.parametrize("rank", [1, 3])
def test_entries_of_a_low_rank_follow_from_the_others(rank: int) -> None:
    draw = torch.Generator().manual_seed(0)
    whole = torch.rand(30, rank, generator=draw).double() @ torch.rand(rank, 20, generator=draw).double()
    there = torch.rand(whole.shape, generator=draw) < 0.5
    there[4] = False
    found = filled(whole * there, there, rank)
    assert torch.equal(found[there], whole[there])
    assert not bool(found[4].any())
    others = there.any(1)
    assert float((found - whole)[others].abs().max()) < 1e-6 * float(whole.max())
    assert torch.equal(filled(whole * there, there, 20), whole * there)  # of full rank nothing follows
