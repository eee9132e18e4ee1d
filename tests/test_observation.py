"""One client in several spellings is attacked as one client."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import SGD, Adam, FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import Clip, ClipExamples, Compose, Defense, RandomK, TopK, noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import map_tensors, squared_norm
from leakgauge.view.entries import undecayed

SPEC = DataSpec((3, 8, 8), 4)
DECAYS = {"lr": 0.1, "weight_decay": 5e-4}


def task(mode: str = "eval", *between: nn.Module) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 200), *between, nn.ReLU(), nn.Linear(200, 4))
    return Task.of(net, SPEC, mode=mode)


def batch() -> Batch:
    g = torch.Generator().manual_seed(1)
    return Batch(torch.rand((8, 3, 8, 8), generator=g), torch.arange(8) % 4)


def seen(client: Protocol, where: Task | None = None, **known: object) -> Observation:
    where = where or task()
    sent = client_update(where, client, batch(), Draws(3))
    return undecayed(Observation(where, sent, Knowledge(example_count=8, local_training=client, **known)))  # type: ignore[arg-type]


ONE_STEP = (
    LocalTraining(optimiser=SGD(lr=0.1)),
    LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9, nesterov=True), proximal=0.3, batch_size=8, drop_last=True),
    LocalTraining(optimiser=SGD(lr=0.1), batch_size=2, accumulate=4),
    LocalTraining(optimiser=SGD(**DECAYS), batch_size=2, accumulate=8),
    LocalTraining(optimiser=SGD(lr=0.1), clip=0.1),
    FedAvg(**DECAYS),
    FedAvg(lr=0.1, weight_decay=0.1, momentum=0.9, nesterov=True),
    SecureAggregation(cohort=2, client=FedAvg(**DECAYS)),
    SecureAggregation(cohort=1, client=LocalTraining(optimiser=SGD(lr=0.1))),
)


@pytest.mark.parametrize("client", ONE_STEP, ids=repr)
def test_a_batch_is_read_exactly_however_its_step_is_written(client: Protocol) -> None:
    """`local-training` with plain SGD was "not known", and torch's usual weight decay "moves every row": the batch that
    is read exactly from `fedavg` came back blurred, or not at all."""
    found = Auto().reconstruct(seen(client), torch.Generator().manual_seed(0), budget=Budget(100))
    assert found.status is Status.EXACT


@pytest.mark.parametrize("known", [True, False], ids=["draws known", "draws unknown"])
@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1)], ids=repr)
def test_a_cohort_of_one_is_its_client(client: Protocol, known: bool) -> None:
    """What knowing a defence gives, the entries that top-k sent, was withheld from who attacks it."""
    cohort = SecureAggregation(cohort=1, client=SecureAggregation(cohort=1, client=client))
    where, defense, draws = task(), RandomK(keep=0.5), Draws(3)
    sent = client_update(where, cohort, batch(), draws, defense=defense)
    knowledge = Knowledge(local_training=cohort, defense=defense, draws=draws if known else None)
    alone = undecayed(Observation(where, sent, knowledge))
    assert alone.knowledge.local_training == client
    simulator = Simulator.of(alone, torch.empty(()), torch.Generator())
    assert simulator.view.support is not None
    again = simulator.exact(batch())
    assert all(torch.allclose(again[k], v, atol=1e-6) for k, v in sent.tensors.items())


SEVERAL = (
    FedAvg(epochs=3, **DECAYS),
    LocalTraining(optimiser=SGD(lr=0.1, momentum=0.5, weight_decay=0.01), epochs=2, batch_size=2),
    LocalTraining(optimiser=SGD(lr=0.1, weight_decay=0.01), epochs=2, batch_size=2, accumulate=2),
    LocalTraining(optimiser=SGD(lr=0.1, weight_decay=0.01), epochs=3, batch_size=4, accumulate=5),
    SecureAggregation(cohort=2, client=FedAvg(epochs=2, **DECAYS)),
)


@pytest.mark.parametrize("client", [c for c in ONE_STEP if getattr(c, "clip", None) is None], ids=repr)
def test_the_plainer_client_sends_what_is_left_of_the_update(client: Protocol) -> None:
    plain = seen(client)
    known, told = plain.knowledge.local_training, plain.linear
    assert known is not None
    assert told.decay == 0
    again = client_update(plain.task, known, batch(), Draws(3)).tensors
    left = squared_norm(map_tensors(torch.sub, again, plain.update.tensors)) / squared_norm(again)
    assert float(left) < 1e-10


@pytest.mark.parametrize("client", [*(c for c in ONE_STEP if getattr(c, "clip", None) is None), *SEVERAL], ids=repr)
def test_an_update_is_the_sum_of_gradients_that_its_client_states(client: Protocol) -> None:
    """Gradients that do not depend on the parameters: the sum is exact whatever they are."""
    where, given = task(), []

    def rule(task, parameters, buffers, batch, model, defense):  # type: ignore[no-untyped-def]
        g = torch.Generator().manual_seed(len(given))
        given.append(map_tensors(lambda p: torch.randn(p.shape, generator=g, dtype=p.dtype), parameters))
        return given[-1], buffers

    where = where.to(torch.empty((), dtype=torch.float64))
    sent, _ = client.local_training(where, batch(), Draws(3), rule)
    told = client.linear(8)
    held = len(given) // len(told.weights)  # minibatches of a step, or clients whose one step is one sum
    weights = [w / held for w in told.weights for _ in range(held)]
    made = map_tensors(lambda *gs: sum(w * g for w, g in zip(weights, gs, strict=True)), *given)
    made = map_tensors(lambda m, p: m + told.decay * p, made, where.parameters)
    assert float(squared_norm(map_tensors(torch.sub, made, sent)) / squared_norm(sent)) < 1e-18
    assert sum(told.sizes) == 8 * (client.loop.epochs if client.loop else 1)


@pytest.mark.parametrize(
    "client",
    [
        LocalTraining(optimiser=Adam()),
        LocalTraining(optimiser=SGD(lr=0.1), batch_size=3, drop_last=True),
        LocalTraining(optimiser=SGD(lr=0.1), batch_size=3, accumulate=2),
        LocalTraining(optimiser=SGD(lr=0.1), batch_size=4, proximal=0.1),
        LocalTraining(optimiser=SGD(lr=0.1), batch_size=4, clip=0.1),
        SecureAggregation(cohort=2, client=LocalTraining(optimiser=SGD(lr=0.1), clip=0.1)),
    ],
    ids=repr,
)
def test_other_clients_state_no_sum(client: Protocol) -> None:
    assert client.linear(8) is None
    assert seen(client).knowledge.local_training is client


@pytest.mark.parametrize(("defense", "kept"), [(TopK(keep=0.5), True), (ClipExamples(norm=0.1), False)], ids=repr)
def test_decay_is_left_where_a_defence_has_changed_the_update(defense: Defense, kept: bool) -> None:
    told = seen(FedAvg(**DECAYS), defense=defense).linear
    assert bool(told.decay) == kept


def test_what_was_not_sent_stays_zero() -> None:
    client = FedAvg(**DECAYS)
    sent, where = client_update(task(), client, batch(), Draws(3)), task()
    holes = map_tensors(lambda t: torch.where(t > 0, t, 0.0), sent.tensors)
    plain = undecayed(
        Observation(where, replace(sent, tensors=holes), Knowledge(example_count=8, local_training=client))
    )
    assert all(bool((plain.update.tensors[k][v == 0] == 0).all()) for k, v in holes.items())


@pytest.mark.parametrize("client", [FedSGD(), SecureAggregation(cohort=2, client=FedSGD())], ids=repr)
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_a_last_clip_beyond_what_was_sent_is_none(client: Protocol, share: float) -> None:
    """Of one client: a mean of clipped updates is shorter than each."""
    where, quiet = task(), noise(sigma=1e-9)
    length = float(squared_norm(client_update(where, client, batch(), Draws(3)).tensors)) ** 0.5
    clipped = Compose((quiet, Clip(norm=share * length)))
    sent = client_update(where, client, batch(), Draws(3), defense=clipped)
    known = Knowledge(example_count=8, local_training=client, defense=clipped)
    plain = undecayed(Observation(where, sent, known)).knowledge.defense
    assert plain == (quiet if share > 1 and not client.aggregates else clipped)
    assert undecayed(Observation(where, sent, replace(known, draws=Draws(3)))).knowledge.defense == clipped
    behind = Compose((Clip(norm=share * length), TopK(keep=0.1)))  # which may have shortened what was longer
    cut = client_update(where, client, batch(), Draws(3), defense=behind)
    assert undecayed(Observation(where, cut, replace(known, defense=behind))).knowledge.defense == behind
