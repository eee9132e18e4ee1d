"""What `auto` chooses, and that the choice pays."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.matching import Adam, BoundedLBFGS, Given, NoPrior, Scheduled
from leakgauge.attacks.matching.schedule import Falling
from leakgauge.attacks.recipes import Auto, inverting_gradients
from leakgauge.attacks.recipes.auto import affordable, falling_variation
from leakgauge.clients import FedAvg, FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.metrics.pixel import PSNR
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import DataSpec, Task


def seen(protocol=None, n: int = 1, seed: int = 0) -> Observation:
    protocol = protocol or FedSGD()
    t, b = task("smooth", seed=seed), batch(n)
    known = Knowledge(labels=b.labels, example_count=n, local_training=protocol)
    return Observation(t, client_update(t, protocol, b, Draws(seed)), known)


def last(weighted: Scheduled) -> float:
    assert isinstance(weighted.schedule, Falling)
    return weighted.prior.weight * weighted.schedule.to


def test_the_weight_ends_lower_where_there_is_more_to_spend() -> None:
    ends = [last(falling_variation(n)) for n in (1, 20, 75, 150, 300, 600, 1500, 10**6)]
    assert all(b <= a for a, b in pairwise(ends))
    assert ends[0] == pytest.approx(3e-2)
    assert last(falling_variation(150)) == pytest.approx(1e-3)
    assert last(falling_variation(600)) == pytest.approx(1e-3 / 16)
    assert ends[-1] == pytest.approx(1e-5)


def test_a_near_start_is_not_blurred_first() -> None:
    far, near = falling_variation(600), falling_variation(600, near=True)
    assert near.prior.weight < far.prior.weight
    assert last(near) == pytest.approx(last(far))


def test_noise_holds_the_weight_at_a_hundredth_of_itself() -> None:
    weighted = falling_variation(600)
    for relative in (0.01, 0.03, 0.1):
        floor = weighted.prior.weight * weighted.schedule(599, 600, relative**2 / 2)
        assert relative / 100 <= floor < 2.1 * relative / 100


def test_the_network_decides_the_minimiser_and_the_data_the_prior() -> None:
    g = torch.Generator().manual_seed(0)
    smooth, rough = (Auto().choice(task(m), g) for m in ("smooth", "relu"))
    assert isinstance(smooth.minimiser, BoundedLBFGS)
    assert isinstance(smooth.prior, Scheduled)
    assert isinstance(rough.minimiser, Adam)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Sigmoid(), torch.nn.Linear(4, 2))
    assert isinstance(Auto().choice(Task.of(module, DataSpec((6,), 2)), g).prior, NoPrior)
    near = Auto().choice(task("smooth"), g, Given(batch(1).inputs))
    assert near.prior == falling_variation(600, near=True)


def test_the_budget_and_the_batch_decide_the_weight() -> None:
    g = torch.Generator().manual_seed(0)
    assert Auto().choice(task("smooth"), g, evaluations=150).prior == falling_variation(150)
    assert Auto().choice(task("smooth"), g, evaluations=10**6).prior == falling_variation(600)
    assert Auto().choice(task("smooth"), g, evaluations=600, examples=4).prior == falling_variation(150)


def test_the_budget_is_shared_by_restarts_and_local_steps() -> None:
    assert affordable(seen(), Budget(), 1) is None
    assert affordable(seen(), Budget(gradient_evaluations=600), 1) == 600
    assert affordable(seen(), Budget(gradient_evaluations=600), 4) == 150
    stepped = seen(FedAvg(epochs=2, batch_size=2, lr=0.1), n=4)
    assert affordable(stepped, Budget(gradient_evaluations=600), 1) == 150


def test_at_equal_evaluations_it_beats_the_published_recipe() -> None:
    truth, budget = batch(1).inputs, Budget(gradient_evaluations=120)

    def score(attack, seed: int) -> float:
        found = attack.reconstruct(seen(seed=seed), torch.Generator().manual_seed(seed), budget=budget)
        assert found.inputs is not None
        return float(PSNR()(found.inputs.double(), truth))

    ours, published = ([score(a, s) for s in range(3)] for a in (Auto(), inverting_gradients()))
    assert statistics.median(ours) > statistics.median(published) + 3
