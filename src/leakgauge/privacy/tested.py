"""Is the noise really there? A stated ε against what canaries show: lower bounds on ε from guesses about who was in.

Each canary is in with probability ½, by a coin of its own. Whoever guesses better than the privacy claim permits
refutes the claim. All bounds here hold with confidence 1 − `significance` for guesses whose *number* does not depend
on the coins.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from scipy.special import expit, ndtr, ndtri
from scipy.stats import beta, binom

from leakgauge.errors import require
from leakgauge.privacy.accounting import Unit, epsilon_of_mu, epsilon_of_noise, largest, mu_of
from leakgauge.privacy.canaries import CanaryScores, NoisePath, directions, scores


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
    return largest(lambda epsilon: significance - p_value(guesses, epsilon, delta))


def one_run_gaussian(guesses: Guesses, *, significance: float, delta: float) -> float:
    """ε at δ of the largest μ such that μ-GDP is refuted; 0 where nothing is.

    Tighter than `one_run`, as it uses the whole trade-off curve; it refutes claims that rest on Gaussian noise and no
    others. Source: Mahloujifar, Melis & Chaudhuri, *Auditing f-Differential Privacy in One Run*, arXiv:2410.22235, the
    recursion of its Section 3 with two outcomes a canary.
    """
    mu = largest(lambda mu: _excess(guesses, significance, mu))
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


def blow_up_inverse(probability: float, mu: float) -> float:
    """f̄⁻¹(p) = Φ(Φ⁻¹(p) − μ): an event of probability p has at least this one on a neighbouring data set."""
    return float(ndtr(ndtri(min(max(probability, 0.0), 1.0)) - mu))


CONFIDENCE = 0.95
SHARES = (1.0, 0.5, 0.2, 0.1)
"""Shares of the canaries that are guessed, fixed before any score is seen. Each costs a part of the confidence."""


@dataclass(frozen=True)
class Claim:
    """What is stated: (ε, δ)-differential privacy of `rounds` releases, each with every unit in it.

    Attributes:
        gaussian: the noise is Gaussian, so that the claim is that of μ-GDP with `mu`.
    """

    epsilon: float
    delta: float
    rounds: int = 1
    gaussian: bool = True

    def __post_init__(self) -> None:
        require(0 < self.epsilon < 500, "epsilon", f"is {self.epsilon}", "give a positive number below 500")
        require(0 < self.delta < 1, "delta", f"is {self.delta}", "give a number below 1 / number of units")
        require(self.rounds >= 1, "rounds", f"is {self.rounds}", "give a positive whole number")

    @staticmethod
    def of_noise(noise_multiplier: float, delta: float, rounds: int = 1) -> Claim:
        """The exact ε of `rounds` Gaussian releases without sampling: μ = √rounds/z."""
        return Claim(epsilon_of_noise(noise_multiplier, delta, rounds), delta, rounds)

    @property
    def mu(self) -> float:
        """μ of the Gaussian mechanism with this (ε, δ)."""
        return mu_of(self.epsilon, self.delta)

    @property
    def noise_multiplier(self) -> float:
        """Noise of one release over the clip."""
        return math.sqrt(self.rounds) / self.mu


@dataclass(frozen=True)
class Bound:
    """One lower bound on ε.

    Attributes:
        alone: one canary a call, else all in one.
        gaussian: it refutes only claims that rest on Gaussian noise.
        epsilon: true ε is above it; all bounds of a test hold together with `CONFIDENCE`.
        guesses: on which it rests.
    """

    alone: bool
    gaussian: bool
    epsilon: float
    guesses: Guesses


class ClaimOutcome(Enum):
    """What a test says of a claim; it never confirms one."""

    CONTRADICTED = "contradicted"
    NOT_CONTRADICTED = "not contradicted"
    NO_POWER = "no power"


@dataclass(frozen=True)
class PrivacyTest:
    """A claim and the bounds against it.

    Attributes:
        measured: noise over the clip that the scores suggest, of the layout with less. An estimate, no bound.
        noticed: a path with at most this share of the stated noise is contradicted in nine of ten tests.
    """

    claim: Claim
    unit: Unit
    canaries: int
    bounds: tuple[Bound, ...]
    measured: float
    noticed: float

    @property
    def best(self) -> Bound:
        """The highest lower bound."""
        return max(self.bounds, key=lambda bound: bound.epsilon)

    @property
    def outcome(self) -> ClaimOutcome:
        """`NO_POWER`: the output shows the canaries less than the claim allows by half, so that no fault could be."""
        if self.best.epsilon > self.claim.epsilon:
            return ClaimOutcome.CONTRADICTED
        return (
            ClaimOutcome.NO_POWER if self.measured > 2 * self.claim.noise_multiplier else ClaimOutcome.NOT_CONTRADICTED
        )

    @property
    def sentence(self) -> str:
        """The outcome for a reader who knows what ε is."""
        stated = f"ε = {self.claim.epsilon:.3g} (δ = {self.claim.delta:g}, unit: one {self.unit.value})"
        found = f"{100 * CONFIDENCE:.0f} % confidence"
        z, measured = self.claim.noise_multiplier, _amount(self.measured)
        if self.outcome is ClaimOutcome.CONTRADICTED:
            return (
                f"The stated {stated} is contradicted: with {found} the ε of this code is above "
                f"{self.best.epsilon:.3g}. Its noise over the clip looks like {measured}, where {z:.3g} was stated."
            )
        if self.outcome is ClaimOutcome.NO_POWER:
            return (
                f"This test says nothing about the stated {stated}: the output hardly depends on the canaries (noise "
                f"over the clip looks like {measured} for {z:.3g}). Check that the path sends the sum or mean of what "
                "it is given."
            )
        return (
            f"The stated {stated} is not contradicted by {self.canaries} canaries: ε is above "
            f"{self.best.epsilon:.3g} with {found}. That is no proof of the claim: a path with more than "
            f"{100 * self.noticed:.0f} % of the stated noise can pass."
        )


def check_claim(
    path: NoisePath,
    claim: Claim,
    *,
    clip: float,
    generator: torch.Generator,
    canaries: int = 1000,
    size: int = 10_000,
) -> PrivacyTest:
    """Sends canaries through `path` and bounds ε from below.

    Each canary is there or replaced by a zero update, with probability ½ (adjacency: add or remove one unit, their
    number known). All are sent together, as faults that depend on the number of updates show there, and then each by
    itself, where guesses are independent and the bound is sharp. Confidence is shared equally by all bounds, and
    within one by the numbers of guesses tried.

    Args:
        clip: C, the stated bound of one unit's contribution; canaries are ten times as long.
        canaries, size: how many, and coordinates of an update. Memory: 4·canaries·size bytes, twice.
    """
    require(0 < clip < float("inf"), "clip", f"is {clip}", "give the norm that each update is clipped to")
    drawn = directions(canaries, size, generator)
    layouts = (True,) if path.updates == 1 else (True, False)
    seen = {a: scores(path, drawn, clip=clip, rounds=claim.rounds, alone=a, generator=generator) for a in layouts}
    kinds = (False, True) if claim.gaussian else (False,)
    significance = (1 - CONFIDENCE) / (len(seen) * len(kinds))
    bounds = tuple(_bound(alone, s, g, significance, claim.delta) for alone, s in seen.items() for g in kinds)
    step = max(found.gap for found in seen.values())
    measured = math.inf if step <= 0 else math.sqrt(claim.rounds) / step
    return PrivacyTest(claim, path.unit, canaries, bounds, measured, noticed(claim, canaries, significance))


def _amount(noise_multiplier: float) -> str:
    if noise_multiplier < 1e-3:
        return "nothing"
    return "infinitely much" if math.isinf(noise_multiplier) else f"{noise_multiplier:.3g}"


def _bound(alone: bool, seen: CanaryScores, gaussian: bool, significance: float, delta: float) -> Bound:
    """The highest of the bounds for each number of guesses. Separate calls of Gaussian noise need one number only."""
    m = len(seen.values)
    if gaussian and alone:
        guesses = guess(seen, m)
        return Bound(alone, True, separate_runs_gaussian(guesses, significance=significance, delta=delta), guesses)
    rule: Callable[..., float] = one_run_gaussian if gaussian else one_run
    tried = [guess(seen, round(m * share)) for share in SHARES]
    found = [(rule(g, significance=significance / len(tried), delta=delta), g) for g in tried]
    epsilon, guesses = max(found, key=lambda pair: pair[0])
    return Bound(alone, gaussian, epsilon, guesses)


def guess(scores: CanaryScores, made: int) -> Guesses:
    """Guesses made of the scores alone, then counted against the truth: the highest scores were in, the lowest not.

    With a guess for every canary the border is halfway between the outer twentieths; with fewer, half are of each kind.
    """
    m, order = len(scores.values), np.argsort(scores.values, kind="stable")
    if made >= m:
        low, high = np.quantile(scores.values, (0.05, 0.95))
        right = (scores.values > (low + high) / 2) == scores.present
        return Guesses(m, m, int(right.sum()))
    outside, inside = order[: made // 2], order[m - (made - made // 2) :]
    return Guesses(m, made, int(scores.present[inside].sum() + (~scores.present[outside]).sum()))


def noticed(claim: Claim, canaries: int, significance: float) -> float:
    """Share of the stated noise at which nine of ten tests contradict the claim, by separate calls and Gaussian noise.

    Without the assumption of Gaussian noise the test sees less; this number is then too high.
    """
    needed = next(
        (k for k in range(canaries + 1) if k and beta.ppf(significance, k, canaries - k + 1) > ndtr(claim.mu / 2)),
        None,
    )
    if needed is None:
        return 0.0
    shares = np.linspace(0.01, 1, 100)
    power = binom.sf(needed - 1, canaries, ndtr(claim.mu / 2 / shares))
    return float(shares[power >= 0.9].max(initial=0.0))
