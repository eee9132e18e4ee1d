"""Exact binomial intervals and the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from leakgauge.errors import InputError
from leakgauge.metrics import Interval, mean_interval, proportion_interval, proportion_lower, proportion_upper


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_none_of_eight() -> None:
    assert proportion_upper(0, 8) == pytest.approx(1 - 0.05 ** (1 / 8))
    assert round(proportion_upper(0, 8), 3) == 0.312
    assert proportion_lower(0, 8) == 0.0
    assert (proportion_upper(8, 8), proportion_lower(0, 0), proportion_upper(0, 0)) == (1.0, 0.0, 1.0)


@given(n=st.integers(1, 60), hits=st.integers(0, 60), confidence=st.sampled_from([0.8, 0.95, 0.99]))
def test_agrees_with_scipy(n: int, hits: int, confidence: float) -> None:
    hits = min(hits, n)
    expected = binomtest(hits, n).proportion_ci(confidence, method="exact")
    found = proportion_interval(hits, n, confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    upper = binomtest(hits, n, alternative="less").proportion_ci(confidence, method="exact").high
    lower = binomtest(hits, n, alternative="greater").proportion_ci(confidence, method="exact").low
    assert proportion_upper(hits, n, confidence) == pytest.approx(upper, abs=1e-9)
    assert proportion_lower(hits, n, confidence) == pytest.approx(lower, abs=1e-9)


@pytest.mark.parametrize("p", [0.03, 0.2, 0.5])
def test_covers_at_least_as_often_as_it_says(p: float) -> None:
    """Exactly, over all outcomes of twelve trials."""
    covered = 0.0
    for hits in range(13):
        interval = proportion_interval(hits, 12)
        assert interval.low is not None
        assert interval.high is not None
        covered += float(binom.pmf(hits, 12, p)) * (interval.low <= p <= interval.high)
    assert covered >= 0.95


def test_mean_interval_covers_and_repeats() -> None:
    """150 samples of 30 from a skewed law: 95 % coverage less the bootstrap's known shortfall (.92, sd .022)."""
    data = rng(1)
    hits = 0
    for _ in range(150):
        found = mean_interval(data.exponential(size=30).tolist(), rng(), resamples=400)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 1.0 <= found.high
    assert hits / 150 >= 0.86
    values = data.normal(size=8).tolist()
    assert mean_interval(values, rng()) == mean_interval(values, rng())


def test_edges() -> None:
    assert mean_interval([], rng()) == mean_interval([3.0], rng()) == Interval(None, None)
    assert mean_interval([2.0, 2.0, 2.0], rng()) == Interval(2.0, 2.0)
    found = mean_interval([0.0, 1.0], rng())
    assert (found.low, found.high) == (0.0, 1.0)
    with pytest.raises(InputError, match="finite"):
        mean_interval([1.0, float("inf")], rng())
    for hits, n in [(-1, 3), (4, 3)]:
        with pytest.raises(InputError, match="hits"):
            proportion_upper(hits, n)
