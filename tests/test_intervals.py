"""Exact binomial intervals and the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from leakgauge.errors import InputError
from leakgauge.intervals import (
    Interval,
    bounded_interval,
    bounded_lower,
    bounded_upper,
    mean_interval,
    proportion_interval,
    proportion_lower,
    proportion_upper,
)


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


SLOW = pytest.mark.slow
BATCHES = pytest.mark.parametrize("n", [2, *(pytest.param(n, marks=SLOW) for n in (3, 5, 16)), 8, 32])
ALIKE = pytest.mark.parametrize("correlation", [0.0, 0.3, 0.7])
SAMPLES = 150


def shares(n: int, mean: float, correlation: float, data: np.random.Generator, size: int = 8) -> np.ndarray:
    """Shares of `n` clients of `size` pictures each, which agree with each other within a client (beta-binomial)."""
    scale = (1 - correlation) / max(correlation, 1e-9)
    chances = data.beta(mean * scale, (1 - mean) * scale, size=n) if correlation else np.full(n, mean)
    return data.binomial(size, chances) / size


@BATCHES
@ALIKE
@pytest.mark.parametrize("mean", [0.05, pytest.param(0.3, marks=SLOW), pytest.param(0.5, marks=SLOW), 0.9])
def test_bounds_of_shares_cover_however_alike_a_clients_pictures_are(n: int, correlation: float, mean: float) -> None:
    """Counting pictures as independent covered 37 to 87 % here."""
    data = rng(n)
    seen = [shares(n, mean, correlation, data) for _ in range(SAMPLES)]
    # Of 150 samples, .93 is .95 less one standard error; the bounds are wide enough to stay above it.
    two = [bounded_interval(s) for s in seen]
    assert np.mean([i.low <= mean <= i.high for i in two if i.low is not None and i.high is not None]) >= 0.93
    assert np.mean([bounded_upper(s) >= mean for s in seen]) >= 0.93
    assert np.mean([bounded_lower(s) <= mean for s in seen]) >= 0.93


def test_bounds_of_all_or_nothing_are_exact_and_know_only_clients() -> None:
    assert bounded_upper([0.0] * 8) == pytest.approx(proportion_upper(0, 8))
    assert bounded_lower([1.0] * 5 + [0.0] * 3) == pytest.approx(proportion_lower(5, 8))
    assert (bounded_upper([]), bounded_lower([])) == (1.0, 0.0)
    nearly = bounded_upper([0.0] * 7 + [1e-6])
    assert nearly == pytest.approx(proportion_upper(0, 8), abs=5e-3), "drawn weights agree with the exact bound"


def test_bounds_of_many_values_are_wider_and_near() -> None:
    few, many = (shares(n, 0.3, 0.3, rng(3)).tolist() for n in (200, 201))
    assert 0.0 < bounded_upper(many) - np.mean(many) < 0.1
    assert bounded_upper(many) - np.mean(many) >= bounded_upper(few) - np.mean(few) - 0.01


@given(st.lists(st.integers(-100, 100).map(lambda v: v / 100), min_size=1, max_size=12))
def test_bounds_hold_the_mean_and_mirror(values: list[float]) -> None:
    found = bounded_interval(values, low=-1, high=1)
    assert found.low is not None
    assert found.high is not None
    assert -1 <= found.low <= np.mean(values) + 1e-9
    assert np.mean(values) - 1e-9 <= found.high <= 1
    mirrored = bounded_interval([-v for v in values], low=-1, high=1)
    assert mirrored.high == pytest.approx(-found.low, abs=1e-12)


def test_a_value_outside_its_range_is_refused() -> None:
    with pytest.raises(InputError, match="values"):
        bounded_upper([0.5, 1.5])
    with pytest.raises(InputError, match="values"):
        bounded_upper([float("nan")])


@BATCHES
@ALIKE
def test_the_interval_of_a_mean_psnr_covers(n: int, correlation: float) -> None:
    """Clients of eight pictures whose decibels share a part. A bootstrap over four clients covered 80 %."""
    data = rng(n)
    hits = 0
    for _ in range(400):
        common = data.normal(size=(n, 1)) * correlation**0.5
        own = data.normal(size=(n, 8)) * (1 - correlation) ** 0.5
        found = mean_interval((18 + 4 * (common + own)).mean(1).tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 18 <= found.high
    assert hits / 400 >= 0.93


def test_edges() -> None:
    assert mean_interval([]) == mean_interval([3.0]) == Interval(None, None)
    assert mean_interval([2.0, 2.0, 2.0]) == Interval(2.0, 2.0)
    found = mean_interval([0.0, 1.0])
    assert found.high == pytest.approx(0.5 + 12.706 * 0.5, abs=1e-2)
    with pytest.raises(InputError, match="finite"):
        mean_interval([1.0, float("inf")])
    for hits, n in [(-1, 3), (4, 3)]:
        with pytest.raises(InputError, match="hits"):
            proportion_upper(hits, n)
