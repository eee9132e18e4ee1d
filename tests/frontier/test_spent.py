"""ε of a row: only where there is one, and never below that of the worst step."""

from __future__ import annotations

from typing import Any

import pytest

from leakgauge.frontier.plan import FrontierPlan
from leakgauge.frontier.spent import Exposure, exposures, privacy_of, sampling
from leakgauge.privacy import guarantee

SHUFFLED = {"fedavg": {"batch_size": 8, "lr": 0.1, "shuffle": True}}
ONE = [{"clip-examples": {"norm": 1.0}}, {"noise": {"sigma": 0.5}}]


def _spent(defense: Any, client: Any = SHUFFLED, met: Exposure = Exposure(20, 3), **changes: Any) -> dict[str, Any]:  # noqa: B008 - frozen
    pytest.importorskip("opacus")
    raw = {
        "model": {"mlp": {"hidden": [8]}},
        "data": {"size": 8, "images": 2},
        "client": client,
        "attack": "closed-form",
        "gallery": 10,
        "defenses": {"x": [defense]},
    }
    plan = FrontierPlan(raw | changes)
    return privacy_of(plan, plan.rows[1], [met], layers=4)


def test_noise_on_a_delta_of_clipped_steps_has_no_epsilon() -> None:
    """One example moves the later steps by more than its own gradient."""
    assert _spent(ONE, "fedsgd")["epsilon"] > 0
    on_delta = _spent(ONE)
    assert on_delta["epsilon"] is None
    assert "later steps" in on_delta["reason"]


def test_noise_on_a_mean_is_counted_in_the_smallest_step() -> None:
    """20 examples in batches of 8 end with a step of 4, whose noise on the sum is least."""
    defense = {"fed-cdp": {"noise_multiplier": 1.0}}
    assert _spent(defense)["noise_multiplier"] == pytest.approx(4**0.5 / 4**0.5)
    assert _spent(defense, met=Exposure(16, 3))["noise_multiplier"] == pytest.approx(8**0.5 / 4**0.5, rel=1e-3)


def test_only_shuffled_batches_count_as_samples() -> None:
    defense = {"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}
    fixed = {"fedavg": {"batch_size": 8, "lr": 0.1, "epochs": 2}}
    shuffled = _spent(defense)
    assert (shuffled["sample_rate"], shuffled["steps"]) == (0.4, 9)
    known = _spent(defense, fixed)
    assert (known["sample_rate"], known["steps"]) == (1.0, 6)
    plan = FrontierPlan({"client": fixed, "defenses": {"x": [defense]}, "data": {"images": 1}})
    exact = guarantee(plan.rows[1].defense.value, sample_rate=1.0, steps=6, delta=1e-5)
    assert known["epsilon"] == pytest.approx(exact.epsilon, rel=1e-3)  # type: ignore[union-attr]
    assert sampling(plan.client.value, 20) == (1.0, 2)


def test_batchnorm_statistics_take_the_guarantee_away() -> None:
    defense = {"client-dp": {"norm": 1.0, "noise_multiplier": 2.0}}
    model = {"model": {"resnet20": {"width": 4}}, "data": {"size": 16, "images": 2}}
    assert _spent(defense, **model)["epsilon"] > 0
    sent = _spent(defense, mode="train", **model)
    assert sent["epsilon"] is None
    assert "statistics" in sent["reason"]


def test_without_a_training_the_single_update_is_counted() -> None:
    raw = {"defenses": {"x": [{"batch": 2}]}, "data": {"size": 8, "images": 1}}
    plan = FrontierPlan(raw | {"utility": {"train": {"source": "samples", "size": 8}}})
    assert exposures(plan) == [Exposure(1, 1)]


def test_a_delta_of_one_over_the_examples_gives_no_epsilon() -> None:
    """Eight photos in two clients: a release of one of them, whole, has ε = 0 at δ = 1/8."""
    pytest.importorskip("opacus")
    eight = {"source": "samples", "size": 8}
    training = {"train": eight, "test": eight, "clients": 2, "per_round": 1, "rounds": 1}
    defense = {"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}
    assert _spent(defense, utility=training, delta=0.12)["epsilon"] > 0
    refused = _spent(defense, utility=training, delta=0.13)
    assert refused["epsilon"] is None
    assert "not below 1/8" in refused["reason"]
