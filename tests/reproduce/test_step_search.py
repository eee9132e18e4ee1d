"""An unknown number of local epochs is found by trying."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reproduce.inverting_gradients.step_search import StepSearch

from cases import batch, task
from leakgauge.attacks.matching import BoundedLBFGS, Matching, Pixels, SquaredL2, Uniform
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction

INNER = Matching(objective=SquaredL2(), canvas=Pixels(first=Uniform()), minimiser=BoundedLBFGS(steps=60, scale=1e6))
CLIENT = FedAvg(lr=0.03)
SEARCH = StepSearch(attack=INNER, client=CLIENT, epochs=(1, 2, 4))


def observe(protocol: Protocol, *, known: bool = False, model: str = "smooth") -> Observation:
    t, b = task(model), batch(1)
    update = client_update(t, protocol, b, Draws(0))
    told = protocol if known else None
    return Observation(t, update, Knowledge(labels=b.labels, example_count=1, local_training=told))


def run(attack, observation: Observation, **options) -> Reconstruction:
    return attack.reconstruct(observation, torch.Generator().manual_seed(1), **options)


def psnr(found: Reconstruction) -> float:
    return float(PSNR()(found.inputs, batch(1).inputs))


@pytest.mark.parametrize("epochs", [1, 4])
def test_the_true_number_of_epochs_wins(epochs: int) -> None:
    found = run(SEARCH, observe(replace(CLIENT, epochs=epochs)))
    assert found.message.startswith(f"{epochs} local epochs at lr 0.03")
    assert psnr(found) > 25


def test_it_finds_what_an_attacker_who_knows_finds_and_a_wrong_guess_does_not() -> None:
    observation = observe(replace(CLIENT, epochs=4))
    searched = psnr(run(SEARCH, observation))
    told = psnr(run(INNER, observe(replace(CLIENT, epochs=4), known=True)))
    wrong = psnr(run(StepSearch(attack=INNER, client=CLIENT, epochs=(1,)), observation))
    assert min(searched, told) > wrong + 10


def test_what_is_known_is_not_searched() -> None:
    for observation in (observe(FedAvg(epochs=3, lr=0.1), known=True), observe(FedSGD())):
        ours, plain = run(SEARCH, observation), run(INNER, observation)
        assert torch.equal(ours.inputs, plain.inputs)
        assert ours.cost.gradient_evaluations == plain.cost.gradient_evaluations
