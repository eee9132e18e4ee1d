"""Every stated 95 % interval and bound, by simulation: clients of any size whose images are alike to any degree."""

from __future__ import annotations

import numpy as np
import pytest

from leakgauge.intervals import bounded_interval, bounded_lower, bounded_upper, mean_interval

pytestmark = pytest.mark.slow

AUDITS, ASKED = 2000, 0.93
CLIENTS, ALIKE = (2, 3, 5, 8, 16, 32), (0.0, 0.3, 0.7)


def shares(rng: np.random.Generator, clients: int, size: int, rate: float, alike: float) -> np.ndarray:
    """Shares of each client's images: one of a beta law a client, which gives the correlation `alike` within it."""
    if alike == 0:
        own = np.full((AUDITS, clients), rate)
    else:
        total = (1 - alike) / alike
        own = rng.beta(rate * total, (1 - rate) * total, (AUDITS, clients))
    return rng.binomial(size, own) / size


@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("clients", CLIENTS)
def test_shares_of_clients(clients: int, alike: float) -> None:
    rng, worst = np.random.default_rng(int(100 * alike) + clients), 1.0
    for size in (1, 8):
        for rate in (0.05, 0.3, 0.7):
            drawn = shares(rng, clients, size, rate, alike)
            upper = np.mean([rate <= bounded_upper(row) + 1e-9 for row in drawn])
            lower = np.mean([rate >= bounded_lower(row) - 1e-9 for row in drawn])
            ends = [bounded_interval(row) for row in drawn]
            both = np.mean([(e.low or 0.0) - 1e-9 <= rate <= (1.0 if e.high is None else e.high) + 1e-9 for e in ends])
            worst = min(worst, upper, lower, both)
    print(f"{clients} clients, alike {alike}: lowest coverage {worst:.3f}")  # noqa: T201 - the result
    assert worst >= ASKED


@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("clients", CLIENTS)
def test_mean_psnr_of_clients(clients: int, alike: float) -> None:
    """Of one hump, as it is stated: normal, and skewed as a gamma law of shape 9."""
    rng, worst = np.random.default_rng(int(100 * alike) + clients), 1.0
    for size in (1, 8):
        for skewed in (False, True):
            of_client, of_image = (
                (rng.gamma(9, 1, shape) - 9) / 3 if skewed else rng.normal(size=shape)
                for shape in ((AUDITS, clients, 1), (AUDITS, clients, size))
            )
            images = 15 + 3 * (alike**0.5 * of_client + (1 - alike) ** 0.5 * of_image)
            ends = [mean_interval(row) for row in images.mean(2)]
            worst = min(
                worst, np.mean([e.low <= 15 <= e.high for e in ends if e.low is not None and e.high is not None])
            )
    print(f"{clients} clients, alike {alike}: lowest coverage {worst:.3f}")  # noqa: T201 - the result
    assert worst >= ASKED


@pytest.mark.parametrize("alike", ALIKE)
@pytest.mark.parametrize("clients", CLIENTS)
def test_label_f1_above_a_guess(clients: int, alike: float) -> None:
    """A difference of two shares lies in [−1, 1]."""
    rng, worst = np.random.default_rng(int(100 * alike) + clients), 1.0
    for rate, guess in ((0.3, 0.3), (0.9, 0.1), (0.5, 0.4)):
        gap = shares(rng, clients, 4, rate, alike) - guess
        ends = [bounded_interval(row, low=-guess, high=1 - guess) for row in gap]
        held = [
            (e.low is None or e.low <= rate - guess + 1e-9) and (e.high is None or rate - guess <= e.high + 1e-9)
            for e in ends
        ]
        worst = min(worst, np.mean(held))
    print(f"{clients} clients, alike {alike}: lowest coverage {worst:.3f}")  # noqa: T201 - the result
    assert worst >= ASKED
