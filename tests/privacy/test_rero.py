"""The bound on reconstruction, against its closed form, a brute-force trade-off function and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from leakgauge.errors import InputError
from leakgauge.privacy import Guarantee, Release, Unit, epsilon_of, sentence, success_bound

pytest.importorskip("opacus")


def counted(z: float, steps: int, rate: float) -> Release:
    return Release(noise_multiplier=z, sample_rate=rate, steps=steps)


@pytest.mark.parametrize(("mu", "percent"), [(0.5, 0.5), (1, 1.8), (2, 14), (4, 82)])
def test_the_table_for_one_in_a_thousand(mu: float, percent: float) -> None:
    for spent in ((1 / mu, 1, 1.0), (2 / mu, 4, 1.0)):
        found = 100 * success_bound([counted(*spent)], 1e-3)
        assert found == pytest.approx(percent, rel=0.05)
    words = sentence([counted(1 / mu, 1, 1.0)], 1e-3)
    assert f"1 time in 1 000 without the updates is right at most {found:.2g} %" in words


@pytest.mark.parametrize(("z", "q"), [(1.0, 0.3), (0.5, 0.1), (2.0, 0.7)])
def test_with_sampling_it_is_the_trade_off_of_one_step_by_hand(z: float, q: float) -> None:
    """One step: P = (1−q)·N(0, z²) + q·N(1, z²) against Q = N(0, z²); the best test rejects above a threshold."""
    kappa = 1e-2
    threshold = brentq(lambda x: norm.sf(x / z) - kappa, -50, 50)
    exact = (1 - q) * norm.sf(threshold / z) + q * norm.sf((threshold - 1) / z)
    found = success_bound([counted(z, 1, q)], kappa)
    assert exact <= found <= exact * 1.02


def test_it_holds_where_losses_are_drawn() -> None:
    """Ten sampled steps: the success of the likelihood-ratio attack, by Monte Carlo, is below and near the bound."""
    z, q, steps, kappa = 0.7, 0.2, 10, 0.05
    draw = np.random.default_rng(0)

    def losses(present: bool) -> np.ndarray:
        inside = (draw.random((200_000, steps)) < q) & present
        x = inside + z * draw.standard_normal((200_000, steps))
        return np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z))).sum(1)

    threshold = np.quantile(losses(False), 1 - kappa)
    reached = float((losses(True) > threshold).mean())
    assert reached - 0.004 < success_bound([counted(z, steps, q)], kappa) < reached * 1.06


@settings(max_examples=3)
@given(st.floats(0.6, 4), st.floats(0.02, 0.9), st.integers(1, 10), st.floats(1e-4, 0.3))
def test_it_is_between_the_guess_and_full_batches_and_below_every_epsilon(
    z: float, q: float, steps: int, kappa: float
) -> None:
    found = success_bound([counted(z, steps, q)], kappa)
    assert kappa <= found <= success_bound([counted(z, steps, 1.0)], kappa) <= 1
    releases = [Release(noise_multiplier=z, sample_rate=q, steps=steps)]
    for delta in (1e-5, 1e-3):
        assert found <= math.exp(epsilon_of(releases, delta, "rdp")) * kappa + delta + 1e-9
    assert success_bound([counted(z, steps, q)], min(2 * kappa, 0.6)) >= found * (1 - 1e-6)


def test_guarantees_and_ledgers_are_one() -> None:
    held = Guarantee(2.16, 1e-5, "rdp", Unit.EXAMPLE, 1.0, 0.05, 10)
    one, two = (success_bound(spent, 1e-3) for spent in (held, [counted(1.0, 10, 0.05)]))
    assert one == two
    # ε alone would allow e^2.16 · 0.1 % = 0.87 %.
    assert one == pytest.approx(0.003, rel=0.05)
    halves = tuple(Release(noise_multiplier=1.0, sample_rate=0.05, steps=5) for _ in range(2))
    assert success_bound(halves, 1e-3) == pytest.approx(one, rel=0.02)


def test_a_mixture_of_sampled_and_full_steps() -> None:
    full, part = (Release(noise_multiplier=2.0, sample_rate=q, steps=2) for q in (1.0, 0.1))
    found = success_bound((full, part), 1e-3)
    assert success_bound((full,), 1e-3) <= found <= success_bound([counted(2.0, 4, 1.0)], 1e-3)


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1])
def test_a_prior_is_a_probability(prior: float) -> None:
    with pytest.raises(InputError, match="prior"):
        success_bound([counted(1.0, 1, 1.0)], prior)


def test_losses_of_hundreds_do_not_overflow_into_a_false_promise() -> None:
    """At multiplier .1 the loss of thirty steps is about 140: e^loss times a sum of e^−loss has no digits left."""
    bounds = [success_bound([counted(0.1, 30, rate)], 1 / 101) for rate in (0.1, 0.1019, 0.10191, 32 / 314, 0.102)]
    assert bounds == sorted(bounds)
    assert 0.95 < bounds[0] < bounds[-1] < 0.97


def test_a_bound_of_one_reads_as_a_hundred_percent() -> None:
    assert "at most 100 % of the time" in sentence([counted(0.1, 100, 1.0)], 0.01)
    assert "at most 1.8 % of the time" in sentence([counted(1.0, 1, 1.0)], 0.001)
