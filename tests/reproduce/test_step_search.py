"""An unknown number of local epochs is found by trying."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reproduce.inverting_gradients.step_search import StepSearch

from cases import batch, task
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.matching import BoundedLBFGS, Matching, Pixels, SquaredL2, Uniform
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status, Step

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


def test_rates_are_candidates_too() -> None:
    search = StepSearch(attack=INNER, client=FedAvg(lr=9.0), epochs=(2, 4), rates=(0.01, 0.03))
    assert [(c.epochs, c.optimiser.lr) for c in search.candidates] == [(2, 0.01), (2, 0.03), (4, 0.01), (4, 0.03)]
    assert run(search, observe(FedAvg(epochs=4, lr=0.03))).message.startswith("4 local epochs at lr 0.03")


def test_what_is_known_is_not_searched() -> None:
    for observation in (observe(FedAvg(epochs=3, lr=0.1), known=True), observe(FedSGD())):
        ours, plain = run(SEARCH, observation), run(INNER, observation)
        assert torch.equal(ours.inputs, plain.inputs)
        assert ours.cost.gradient_evaluations == plain.cost.gradient_evaluations


def test_the_budget_is_shared_so_that_all_candidates_take_as_many_steps() -> None:
    told: list[Step] = []
    observation = observe(replace(CLIENT, epochs=2))
    found = run(SEARCH, observation, budget=Budget(gradient_evaluations=70), on_step=lambda s: told.append(s) or False)
    assert found.cost.gradient_evaluations <= 70
    begins = [i for i, step in enumerate(told) if step.index == 0]
    assert len(begins) == 3
    assert {b - a for a, b in zip(begins, [*begins[1:], len(told)], strict=True)} == {10}
    assert [s.gradient_evaluations for s in told] == sorted(s.gradient_evaluations for s in told)
    assert told[-1].gradient_evaluations == found.cost.gradient_evaluations
    assert all(e <= found.cost.gradient_evaluations for e, _ in found.trace)


def test_stopping_ends_the_search_and_a_budget_for_nothing_is_a_status() -> None:
    observation = observe(replace(CLIENT, epochs=2))
    stopped = run(SEARCH, observation, on_step=lambda step: step.index == 3)
    assert stopped.status is Status.STOPPED
    assert stopped.cost.gradient_evaluations == 4
    nothing = run(StepSearch(attack=INNER, epochs=(8, 16)), observation, budget=Budget(gradient_evaluations=3))
    assert (nothing.status, nothing.inputs) == (Status.OUT_OF_BUDGET, None)
    late = run(SEARCH, observation, budget=Budget(seconds=1e-9))
    assert late.inputs is None or late.status is Status.TIME_LIMIT


def test_failures_say_why_and_a_certified_closed_form_ends_the_search() -> None:
    t, b = task(), batch(1)
    update = client_update(t, CLIENT, b, Draws(0), send_example_count=False)
    found = run(SEARCH, Observation(t, update, Knowledge(labels=None)))
    assert found.status is Status.NOT_APPLICABLE
    assert "example" in found.message or "label" in found.message
    exact = run(StepSearch(attack=LinearRead()), observe(CLIENT, model="flat"))
    assert exact.status is Status.EXACT


def test_candidates_are_checked() -> None:
    for bad in ({"epochs": ()}, {"epochs": (0,)}, {"rates": (0.0,)}):
        with pytest.raises(InputError, match=r"epochs|rates"):
            StepSearch(attack=INNER, **bad)
