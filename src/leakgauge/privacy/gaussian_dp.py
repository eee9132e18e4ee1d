"""μ-Gaussian differential privacy: the trade-off curve of one Gaussian mechanism, and its ε at a given δ."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from leakgauge.errors import require


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest δ for which a μ-GDP mechanism is (ε, δ)-differentially private.

    Source: Balle & Wang, *Improving the Gaussian Mechanism for Differential Privacy*, ICML 2018, Theorem 8, with
    μ = sensitivity/σ.
    """
    if mu == 0:
        return 0.0
    first, second = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return float(ndtr(first) - math.exp(epsilon + float(log_ndtr(second))))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The smallest ε ≥ 0 for which a μ-GDP mechanism is (ε, δ)-differentially private; δ in (0, 1)."""
    require(0 < delta < 1, "delta", f"is {delta}", "give a number in (0, 1), below 1 / number of units")
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_of(mu, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0.0, high, xtol=1e-10))


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ for which μ-GDP implies (ε, δ)-differential privacy. One Gaussian mechanism that states this
    (ε, δ) without slack is μ-GDP."""
    high = 1.0
    while delta_of(high, epsilon) <= delta:
        high *= 2
    return float(brentq(lambda mu: delta_of(mu, epsilon) - delta, 0.0, high, xtol=1e-12))


def blow_up_inverse(probability: float, mu: float) -> float:
    """f̄⁻¹(p) = Φ(Φ⁻¹(p) − μ): an event of probability p has at least this one on a neighbouring data set."""
    return float(ndtr(ndtri(min(max(probability, 0.0), 1.0)) - mu))
