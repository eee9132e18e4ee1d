"""Signs: zeros, scale, edge cases, and the logistic likelihood."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.defenses import Sign, view_of
from leakgauge.defenses.compression import SOFTNESS
from leakgauge.update import Update, UpdateHeader, UpdateKind

NAN = float("nan")


def sent_by(defense: Sign, values: list[float]) -> list[float]:
    t = torch.tensor(values, dtype=torch.float64)
    return [float(v) for v in defense.on_update({"w": t}, torch.Generator())["w"]]


def update(values: list[float]) -> Update:
    return Update({"w": torch.tensor(values, dtype=torch.float64)}, UpdateHeader(UpdateKind.GRADIENT, 1))


def test_scaled_signs_carry_the_mean_magnitude() -> None:
    assert sent_by(Sign(), [3.0, 0.0, -0.1]) == [1, 0, -1]
    assert sent_by(Sign(scaled=True), [3.0, 0.0, -1.0, 4.0]) == [2, 0, -2, 2]


@pytest.mark.parametrize("scaled", [False, True])
def test_edges(scaled: bool) -> None:
    defense = Sign(scaled=scaled)
    assert sent_by(defense, []) == []
    assert math.isnan(sent_by(defense, [1.0, NAN])[1])
    assert sent_by(defense, [0.0, 0.0]) == [0.0, 0.0]
    assert sent_by(defense, [-0.5]) == [-0.5 if scaled else -1.0]


def test_the_likelihood_against_a_twin_and_finite_differences() -> None:
    seen, raw = [1.0, -1.0, 0.0, 1.0], [0.2, 0.05, -0.1, 0.4]
    stated = view_of(Sign(), update(seen), None).log_likelihood
    assert stated is not None
    tau = SOFTNESS * math.sqrt(sum(g * g for g in raw) / 4)

    def logistic(z: float) -> float:
        return -math.log1p(math.exp(-z))

    both = (logistic(-0.1 / tau) + logistic(0.1 / tau)) / 2
    expected = logistic(0.2 / tau) + logistic(-0.05 / tau) + both + logistic(0.4 / tau)
    assert float(stated({"w": torch.tensor(raw, dtype=torch.float64)})) == pytest.approx(expected)
    leaf = torch.tensor(raw, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: stated({"w": t}), leaf)


def test_the_likelihood_does_not_ask_for_a_length_that_was_not_sent() -> None:
    stated = view_of(Sign(), update([1.0, -1.0, 1.0]), None).log_likelihood
    assert stated is not None
    raw = torch.tensor([0.3, 0.1, -0.2], dtype=torch.float64)
    assert float(stated({"w": raw})) == pytest.approx(float(stated({"w": 1000 * raw})))


def test_right_signs_are_likelier_than_wrong_ones() -> None:
    stated = view_of(Sign(), update([1.0, -1.0]), None).log_likelihood
    assert stated is not None
    right, wrong = (float(stated({"w": torch.tensor(v)})) for v in ([0.3, -0.3], [-0.3, 0.3]))
    assert right > wrong
