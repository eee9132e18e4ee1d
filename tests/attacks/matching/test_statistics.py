"""BatchNorm statistics that travelled with an update."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.matching import Adam, BoundedLBFGS, Matching
from leakgauge.attacks.matching.priors import Statistics
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Mode


def seen(client: Protocol = FedSGD(), mode: Mode = Mode.TRAIN, *, told: bool = True) -> Observation:
    t, b = task("normed", mode), batch(3)
    update = client_update(t, client, b, Draws(0), send_buffers=True)
    return Observation(t, update, Knowledge(b.labels, 3, client, buffers=update.buffers if told else None))


@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1)], ids=["fedsgd", "one local step"])
def test_they_are_those_of_the_batch_and_vanish_at_the_truth_alone(client: Protocol) -> None:
    observation = seen(client)
    statistics = Statistics.of(observation, observation.task)
    assert statistics is not None
    assert float(statistics.distance(batch(3).inputs, {})) < 1e-10
    other = batch(3, seed=5).inputs.requires_grad_()
    distance = statistics.distance(other, {})
    assert float(distance.detach()) > 1e-4
    assert float(torch.autograd.grad(distance, other)[0].abs().sum()) > 0


@pytest.mark.parametrize(
    "observation",
    [seen(told=False), seen(mode=Mode.EVAL), seen(FedAvg(epochs=2, lr=0.1))],
    ids=["not told", "eval mode", "several steps"],
)
def test_there_are_none_where_none_travelled_or_several_steps_made_them(observation: Observation) -> None:
    assert Statistics.of(observation, observation.task) is None


def test_an_attack_that_is_told_them_uses_them_where_they_weigh_something() -> None:
    """By default they do not: who was told more found less."""
    observation = seen()
    for minimiser in (Adam(steps=4), BoundedLBFGS(steps=4)):
        off = Matching(minimiser=minimiser, restarts=2)
        attack = replace(off, statistics=0.1)
        told, deaf = (a.reconstruct(observation, torch.Generator().manual_seed(0)) for a in (attack, off))
        untold = attack.reconstruct(seen(told=False), torch.Generator().manual_seed(0))
        assert torch.equal(deaf.inputs, untold.inputs)
        assert not torch.equal(told.inputs, untold.inputs)
