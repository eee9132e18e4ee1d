"""Lower bounds on ε from guesses, against another implementation and against mechanisms whose ε is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from leakgauge.privacy.accounting import delta_of, epsilon_of_mu, mu_of
from leakgauge.privacy.tested import (
    Guesses,
    blow_up_inverse,
    one_run,
    one_run_gaussian,
    p_value,
    separate_runs_gaussian,
)

# canaries, guesses, correct, significance, δ → one-run bound, f-DP one-run bound; by running jax_privacy 2.0.0
ORACLE = [
    (10, 10, 9, 0.05, 1e-05, 0.42958612293589465, 1.0686457182107691),
    (50, 50, 50, 0.05, 1e-05, 2.7833087629132476, 6.8279658533116),
    (100, 100, 65, 0.05, 1e-05, 0.25683079855625823, 0.5649769833894575),
    (200, 20, 20, 0.05, 1e-05, 1.8164726132401656, 2.892102871817154),
    (200, 100, 88, 0.05, 1e-05, 1.4677011810896918, 2.8257030573747324),
    (200, 100, 88, 0.05, 0.001, 1.370446684949065, 1.9657149816297768),
    (200, 100, 88, 0.01, 1e-05, 1.2869692031240845, 2.169412378186495),
    (200, 100, 88, 0.01, 0.001, 0.3077650315992154, 1.481006718950552),
    (200, 200, 200, 0.05, 1e-05, 4.1882158070293585, 9.513956845680443),
    (1000, 500, 400, 0.05, 1e-05, 1.1979685996776859, 2.076806928840693),
    (1000, 1000, 977, 0.05, 1e-05, 3.3937183965483353, 6.449245613744536),
    (1000, 1000, 1000, 0.05, 1e-05, 5.782283131572193, 12.334570155595598),
    (1000, 300, 150, 0.05, 1e-05, 0.0, 0.0),
]


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: f"{case[2]} of {case[1]} of {case[0]}")
def test_equal_to_another_implementation(case: tuple[float, ...]) -> None:
    m, made, correct, significance, delta, plain, gaussian = case
    guesses = Guesses(int(m), int(made), int(correct))
    assert one_run(guesses, significance=significance, delta=delta) == pytest.approx(plain, abs=1e-6)
    assert one_run_gaussian(guesses, significance=significance, delta=delta) == pytest.approx(gaussian, abs=1e-6)


@pytest.mark.parametrize("mu", [0.2, 1.0, 4.0])
def test_epsilon_of_a_gaussian_mechanism_by_integration(mu: float) -> None:
    """δ(ε) = ∫ max(p − e^ε·q, 0), the hockey-stick divergence."""
    found = epsilon_of_mu(mu, 1e-5)
    edge = found / mu + mu / 2
    delta = quad(lambda x: norm.pdf(x - mu) - math.exp(found) * norm.pdf(x), edge, edge + 30, epsabs=1e-13)[0]
    assert delta == pytest.approx(1e-5, rel=1e-4)
    assert mu_of(found, 1e-5) == pytest.approx(mu, rel=1e-6)


def test_a_blow_up_is_undone_by_the_shifted_test() -> None:
    """A threshold test on N(0, 1) of size p has power blow-up(p) on N(μ, 1)."""
    assert blow_up_inverse(norm.sf(0.3 - 1.5), 1.5) == pytest.approx(norm.sf(0.3))
    assert (delta_of(0.0, 0.0), epsilon_of_mu(1e-6, 1e-5)) == (0.0, 0.0)


@given(st.integers(5, 60), st.floats(0.0, 4.0, allow_subnormal=False), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_p_values_of_randomised_response_are_honest(m: int, epsilon: float, seed: int) -> None:
    """Guesses right with probability e^ε/(1 + e^ε) are exactly ε-private: a p-value below α is as rare as α."""
    rng = np.random.default_rng(seed)
    correct = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), 400)
    refuted = [p_value(Guesses(m, m, c), epsilon, 0.0) < 0.05 for c in range(m + 1)]
    rejected = np.mean(np.asarray(refuted)[correct])
    assert rejected <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_more_right_guesses_raise_every_bound(delta: float) -> None:
    for bound in (one_run, one_run_gaussian, separate_runs_gaussian):
        found = [bound(Guesses(100, 100, c), significance=0.05, delta=delta) for c in (0, 50, 70, 90, 100)]
        assert found == sorted(found)
        assert found[:2] == [0.0, 0.0]
        assert found[-1] > 3


def test_separate_runs_of_a_gaussian_mechanism_cover_its_epsilon() -> None:
    """Right guesses of N(±μ/2, 1) come with probability Φ(μ/2)."""
    rng, mu = np.random.default_rng(7), 1.0
    correct = rng.binomial(300, norm.cdf(mu / 2), 1000)
    counts, often = np.unique(correct, return_counts=True)
    bounds = [separate_runs_gaussian(Guesses(300, 300, int(c)), significance=0.05, delta=1e-5) for c in counts]
    found = np.repeat(bounds, often)
    assert np.mean(found > epsilon_of_mu(mu, 1e-5)) <= 0.05 + 0.02
    assert np.median(found) > 2.5  # true: 4.38
