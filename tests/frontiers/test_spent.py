"""ε of a row: only where there is one, and never below that of the worst step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from leakgauge.frontiers.columns import exposures, privacy_of
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.frontiers.results import Privacy
from leakgauge.privacy import Release, guarantee, success_bound
from leakgauge.privacy.guarantee import local_use

SHUFFLED = {"fedavg": {"batch_size": 8, "lr": 0.1, "shuffle": True}}
ONE = [{"clip-examples": {"norm": 1.0}}, {"noise": {"sigma": 0.5}}]


def _spent(defense: Any, client: Any = SHUFFLED, met: tuple[int, int] = (20, 3), **changes: Any) -> Privacy:
    pytest.importorskip("opacus")
    raw = {
        "model": {"mlp": {"hidden": [8]}},
        "data": {"size": 8, "images": 2},
        "client": client,
        "attack": "closed-form",
        "gallery": 10,
        "defenses": {"x": [defense]},
    }
    plan = resolve_frontier(raw | changes)
    return privacy_of(plan, plan.rows[1], [met], layers=4)


def test_noise_on_a_delta_of_clipped_steps_has_no_epsilon() -> None:
    """One example moves the later steps by more than its own gradient."""
    assert _spent(ONE, "fedsgd").epsilon > 0
    on_delta = _spent(ONE)
    assert on_delta.epsilon is None
    assert "later steps" in on_delta.reason


def test_noise_on_a_mean_is_counted_in_the_smallest_step() -> None:
    """20 examples in batches of 8 end with a step of 4, whose noise on the sum is least."""
    defense = {"fed-cdp": {"noise_multiplier": 1.0}}
    assert _spent(defense).noise_multiplier == pytest.approx(4**0.5 / 4**0.5)
    assert _spent(defense, met=(16, 3)).noise_multiplier == pytest.approx(8**0.5 / 4**0.5, rel=1e-3)


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_example_is_in_one_step_of_every_epoch(shuffle: bool) -> None:
    defense = {"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}
    client = {"fedavg": {"batch_size": 8, "lr": 0.1, "epochs": 2, "shuffle": shuffle}}
    found = _spent(defense, client)
    assert (found.sample_rate, found.steps) == (1.0, 6)
    plan = resolve_frontier({"client": client, "defenses": {"x": [defense]}, "data": {"images": 1}})
    mechanism = plan.rows[1].defense.value
    exact = guarantee(mechanism, sample_rate=1.0, steps=6, delta=1e-5)
    assert found.epsilon == pytest.approx(exact.epsilon, rel=1e-3)  # type: ignore[union-attr]
    halved = guarantee(replace(mechanism, noise_multiplier=1.0), sample_rate=1.0, steps=6, delta=1e-5)  # type: ignore[type-var]
    assert found.exchanged == pytest.approx(halved.epsilon, rel=1e-3)  # type: ignore[union-attr]
    assert local_use(plan.undefended.client.value, 20) == (2, 4, False)


def test_an_attack_on_shuffled_batches_beats_the_count_of_poisson_samples() -> None:
    """Six steps an epoch, 13 epochs, z = 1: the target pulls one way and all others pull the other, so that the step in
    which it takes an opponent's place stands out, whether it is left out there (1) or not (2). All sums are seen."""
    pytest.importorskip("opacus")
    steps, epochs, kappa, runs = 6, 13, 1 / 101, 20_000
    rng = np.random.default_rng(0)

    def log_ratio(place: float) -> np.ndarray:
        total = np.zeros(runs)
        for _ in range(epochs):
            seen = rng.normal(size=(runs, steps))
            seen[np.arange(runs), rng.integers(0, steps, runs)] += place
            total += logsumexp(2 * seen - 2, axis=1) - logsumexp(seen - 0.5, axis=1)
        return total

    without, with_it = log_ratio(1.0), log_ratio(2.0)
    success = float((with_it > np.quantile(without, 1 - kappa)).mean())
    assert success > 1.5 * success_bound(
        [Release(noise_multiplier=1.0, sample_rate=1 / steps, steps=steps * epochs)], kappa
    ), "so that is no bound"
    assert success <= success_bound([Release(noise_multiplier=1.0, sample_rate=1.0, steps=epochs)], kappa)


def test_batchnorm_statistics_take_the_guarantee_away() -> None:
    defense = {"client-dp": {"norm": 1.0, "noise_multiplier": 2.0}}
    model = {"model": {"resnet20": {"width": 4}}, "data": {"size": 16, "images": 2}}
    assert _spent(defense, **model).epsilon > 0
    sent = _spent(defense, mode="train", **model)
    assert sent.epsilon is None
    assert "statistics" in sent.reason


def test_without_a_training_the_single_update_is_counted() -> None:
    raw = {"defenses": {"x": [{"batch": 2}]}, "data": {"size": 8, "images": 1}}
    plan = resolve_frontier(raw | {"utility": {"train": {"source": "samples", "size": 8}}})
    assert exposures(plan, plan.undefended) == [(1, 1)]
    assert exposures(plan, plan.rows[1]) == [(2, 1)], "the row's own client"


@pytest.mark.parametrize("batch", [1, 8])
def test_a_row_with_a_batch_of_its_own_is_counted_by_it(batch: int) -> None:
    """Noise on a mean counts less on the sum of a smaller batch, and delta is held against the row's own examples."""
    pytest.importorskip("opacus")
    raw = {
        "client": "fedsgd",
        "data": {"size": 8, "images": 8, "batch": 4},
        "delta": 1 / 6,
        "defenses": {"x": [{"defense": ONE, "batch": batch}]},
    }
    plan = resolve_frontier(raw)
    found = privacy_of(plan, plan.rows[1], exposures(plan, plan.rows[1]), layers=4)
    if batch == 8:
        assert found.epsilon is None
        assert "not below 1/8" in found.reason
    else:
        assert found.noise_multiplier == pytest.approx(0.5 * batch)  # norm 1, sigma .5 on a mean of `batch`


def test_a_delta_of_one_over_the_examples_gives_no_epsilon() -> None:
    """Eight photos in two clients: a release of one of them, whole, has ε = 0 at δ = 1/8."""
    pytest.importorskip("opacus")
    eight = {"source": "samples", "size": 8}
    training = {"train": eight, "test": eight, "clients": 2, "per_round": 1, "rounds": 1}
    defense = {"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}
    assert _spent(defense, utility=training, delta=0.12).epsilon > 0
    refused = _spent(defense, utility=training, delta=0.13)
    assert refused.epsilon is None
    assert "not below 1/8" in refused.reason
