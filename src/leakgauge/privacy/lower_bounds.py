"""Lower bounds on ε from guesses about canaries (which of them were in what was released?), and the trade-off curve of
one Gaussian mechanism (μ-GDP).

Each canary is in with probability ½, by a coin of its own. Whoever guesses better than the privacy claim permits
refutes the claim. All bounds here hold with confidence 1 − `significance` for guesses whose *number* does not depend
on the coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_ndtr, ndtr, ndtri
from scipy.stats import beta, binom

from leakgauge.errors import require


@dataclass(frozen=True)
class Guesses:
    """`correct` of `made` guesses were right, about `canaries` canaries; the rest was left open."""

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        fits = 0 <= self.correct <= self.made <= self.canaries and self.canaries > 0
        require(fits, "guesses", f"{self.correct} of {self.made} of {self.canaries}", "give correct ≤ made ≤ canaries")


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Largest probability of so many right guesses under any (ε, δ)-differentially private release.

    Source: Steinke, Nasr & Jagielski, *Privacy Auditing with One (1) Training Run*, NeurIPS 2023, Theorem 5.2: with W
    ~ Binomial(made, e^ε/(1 + e^ε)), P[W ≥ v] + 2mδ·max_i (P[W ≥ v − i] − P[W ≥ v])/i.
    """
    v, chance = guesses.correct, expit(epsilon)
    reached = float(binom.sf(v - 1, guesses.made, chance))
    i = np.arange(1, v + 1)
    slope = float(np.max((binom.sf(v - i - 1, guesses.made, chance) - reached) / i, initial=0.0))
    return min(1.0, reached + 2 * guesses.canaries * delta * slope)


def one_run(guesses: Guesses, *, significance: float, delta: float) -> float:
    """Largest ε such that (ε, δ)-differential privacy is refuted; 0 where nothing is. Whatever the mechanism."""
    return _largest(lambda epsilon: significance - p_value(guesses, epsilon, delta))


def one_run_gaussian(guesses: Guesses, *, significance: float, delta: float) -> float:
    """ε at δ of the largest μ such that μ-GDP is refuted; 0 where nothing is.

    Tighter than `one_run`, as it uses the whole trade-off curve; it refutes claims that rest on Gaussian noise and no
    others. Source: Mahloujifar, Melis & Chaudhuri, *Auditing f-Differential Privacy in One Run*, arXiv:2410.22235, the
    recursion of its Section 3 with two outcomes a canary.
    """
    mu = _largest(lambda mu: _excess(guesses, significance, mu))
    return epsilon_of_mu(mu, delta)


def separate_runs_gaussian(guesses: Guesses, *, significance: float, delta: float) -> float:
    """ε at δ of the largest μ such that μ-GDP is refuted, for canaries that each had an independent run of its own.

    Then every guess is right with probability at most Φ(μ/2), independently of the others, and the count is below a
    binomial. All canaries must have been guessed.
    """
    require(guesses.made == guesses.canaries, "guesses", "leave canaries open", "guess all of them")
    if guesses.correct == 0:
        return 0.0
    rate = float(beta.ppf(significance, guesses.correct, guesses.made - guesses.correct + 1))
    return epsilon_of_mu(2 * max(0.0, float(ndtri(rate))), delta)


def _excess(guesses: Guesses, significance: float, mu: float) -> float:
    """Positive where μ-GDP is refuted: the total probability that the claim forces is then above one.

    From above: `right` bounds the weight of the outcomes with at least i right guesses from below, times i/m, and
    `wrong` that of the same outcomes times (made − i)/m. One canary more in the right is one in the wrong less, on a
    neighbouring data set.
    """
    m, made = guesses.canaries, guesses.made
    right, wrong = significance * guesses.correct / m, significance * (made - guesses.correct) / m
    for i in range(guesses.correct - 1, -1, -1):
        forced = blow_up_inverse(right, mu)
        if forced <= wrong:
            break
        right, wrong = min(1.0, right + i / (made - i) * (forced - wrong)), forced
    return right + wrong - made / m


def _largest(refuted: Callable[[float], float], xtol: float = 1e-9) -> float:
    """The largest argument ≥ 0 at which `refuted`, which falls, is not negative; 0 where it is nowhere positive."""
    if refuted(0.0) <= 0:
        return 0.0
    high = 1.0
    while refuted(high) > 0:
        high *= 2
    return float(brentq(refuted, 0.0 if high == 1 else high / 2, high, xtol=xtol))


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
    return _largest(lambda epsilon: delta_of(mu, epsilon) - delta, 1e-10)


def epsilon_of_noise(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Exact ε of Gaussian releases without sampling: μ = √releases/z."""
    z = noise_multiplier
    require(0 < z < math.inf, "noise_multiplier", f"is {z}", "give the noise on the sum over the clip")
    return epsilon_of_mu(math.sqrt(releases) / z, delta)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest μ for which μ-GDP implies (ε, δ)-differential privacy. One Gaussian mechanism that states this
    (ε, δ) without slack is μ-GDP."""
    return _largest(lambda mu: delta - delta_of(mu, epsilon), 1e-12)


def blow_up_inverse(probability: float, mu: float) -> float:
    """f̄⁻¹(p) = Φ(Φ⁻¹(p) − μ): an event of probability p has at least this one on a neighbouring data set."""
    return float(ndtr(ndtri(min(max(probability, 0.0), 1.0)) - mu))
