"""Counting and averaging against enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from reproduce.mkor.averaging import expected_singletons, hidden_by_averaging


def test_the_published_number() -> None:
    assert expected_singletons(100, 100) == pytest.approx(36.97, abs=5e-3)


@pytest.mark.parametrize(("batch", "classes"), [(1, 1), (2, 1), (1, 4), (3, 2), (4, 3), (5, 4)])
def test_equal_classes_by_enumeration(batch: int, classes: int) -> None:
    draws = list(itertools.product(range(classes), repeat=batch))
    alone = sum(sum(d.count(n) == 1 for n in range(classes)) for d in draws) / len(draws)
    assert expected_singletons(batch, classes) == pytest.approx(alone, abs=1e-12)


def test_larger_batches_by_simulation() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(64, [1 / 40] * 40, size=20_000)
    alone = (counts == 1).sum(1)
    assert expected_singletons(64, 40) == pytest.approx(alone.mean(), abs=4 * alone.std() / 20_000**0.5)


@pytest.mark.parametrize("batch", [2, 5, 20])
def test_information_of_a_mean_by_simulation(batch: int) -> None:
    """Entropy lost by conditioning: ln of the spread before over the spread of what the mean does not explain."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, size=(400_000 // batch, batch))
    first, mean = x[:, 0], x.mean(1)
    slope, offset = np.polyfit(mean, first, 1)
    residual = first - slope * mean - offset
    measured = math.log(first.std() / residual.std())
    assert hidden_by_averaging(batch) == pytest.approx(measured, abs=4 / len(x) ** 0.5)


def test_dimensions_add_up_whatever_their_covariance() -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(3, 3))
    sigma = mix @ mix.T
    joint = np.block([[sigma, sigma / 4], [sigma / 4, sigma / 4]])  # of x₁ and the mean of four
    determinants = [np.linalg.slogdet(m)[1] for m in (sigma, sigma / 4, joint)]
    information = 0.5 * (determinants[0] + determinants[1] - determinants[2])
    assert hidden_by_averaging(4, 3) == pytest.approx(information)
