"""Is the noise really there? A stated ε against what canaries show: lower bounds on ε from guesses about who was in.

Each canary is in with probability ½, by a coin of its own, in a call of its own. Whoever guesses better than the
privacy claim permits refutes the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from leakgauge.errors import require
from leakgauge.privacy.accounting import Unit, epsilon_of_mu, epsilon_of_noise, mu_of
from leakgauge.privacy.canaries import CanaryScores, NoisePath, scores


def refuted(correct: int, made: int, *, gaussian: bool, significance: float, delta: float) -> float:
    """The largest ε at δ that so many right guesses in independent runs refute, each made about a coin; 0 for none.

    A guess is right with probability at most (e^ε + δ)/(1 + e^ε) under any (ε, δ)-private release (Kairouz, Oh &
    Viswanath, 2015), and at most Φ(μ/2) under one that is μ-GDP: the count is below a binomial.

    Args:
        gaussian: whether claims are refuted that rest on Gaussian noise, and no others.
    """
    if correct == 0:
        return 0.0
    rate = float(beta.ppf(significance, correct, made - correct + 1))
    if gaussian:
        return epsilon_of_mu(2 * max(0.0, float(ndtri(rate))), delta)
    return math.log(max((rate - delta) / (1 - rate), 1.0))


CONFIDENCE = 0.99


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


class ClaimOutcome(Enum):
    """What a test says of a claim; it never confirms one."""

    CONTRADICTED = "contradicted"
    NOT_CONTRADICTED = "not contradicted"
    NO_POWER = "no power"


@dataclass(frozen=True)
class PrivacyTest:
    """A claim and what speaks against it.

    Attributes:
        correct: right guesses, one a canary.
        epsilon: lower bound on ε, of any noise, or of Gaussian noise where the claim is of it.
        measured: noise over the clip that the scores suggest. An estimate, no bound.
        noticed: a path with at most this share of the stated noise is contradicted in nine of ten tests.
    """

    claim: Claim
    unit: Unit
    canaries: int
    correct: int
    epsilon: float
    measured: float
    noticed: float

    @property
    def outcome(self) -> ClaimOutcome:
        """`NO_POWER`: the output shows the canaries less than the claim allows by half, so that no fault could be."""
        if self.epsilon > self.claim.epsilon:
            return ClaimOutcome.CONTRADICTED
        return (
            ClaimOutcome.NO_POWER if self.measured > 2 * self.claim.noise_multiplier else ClaimOutcome.NOT_CONTRADICTED
        )

    @property
    def sentence(self) -> str:
        stated = f"ε = {self.claim.epsilon:.3g} (δ = {self.claim.delta:g}, unit: one {self.unit.value})"
        found = f"{100 * CONFIDENCE:.0f} % confidence"
        z, measured = self.claim.noise_multiplier, _amount(self.measured)
        if self.outcome is ClaimOutcome.CONTRADICTED:
            return (
                f"The stated {stated} is contradicted: with {found} the ε of this code is above "
                f"{self.epsilon:.3g}. Its noise over the clip looks like {measured}, where {z:.3g} was stated."
            )
        if self.outcome is ClaimOutcome.NO_POWER:
            return (
                f"This test says nothing about the stated {stated}: the output hardly depends on the canaries (noise "
                f"over the clip looks like {measured} for {z:.3g}). Check that the path sends the sum or mean of what "
                "it is given."
            )
        return (
            f"The stated {stated} is not contradicted by {self.canaries} canaries: ε is above "
            f"{self.epsilon:.3g} with {found}. That is no proof of the claim: a path with more than "
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
    number known), in a call of its own: guesses are independent.

    Args:
        clip: C, the stated bound of one unit's contribution; canaries are ten times as long.
        canaries, size: how many, and coordinates of an update. Memory: 4·canaries·size bytes.
    """
    require(0 < clip < float("inf"), "clip", f"is {clip}", "give the norm that each update is clipped to")
    require(canaries >= 20, "canaries", f"is {canaries}", "give at least 20; 1000 find half of the noise missing")
    seen = scores(path, canaries, size, clip=clip, rounds=claim.rounds, generator=generator)
    correct, significance = guessed(seen), 1 - CONFIDENCE
    epsilon = refuted(correct, canaries, gaussian=claim.gaussian, significance=significance, delta=claim.delta)
    measured = math.inf if seen.gap <= 0 else math.sqrt(claim.rounds) / seen.gap
    return PrivacyTest(claim, path.unit, canaries, correct, epsilon, measured, noticed(claim, canaries, significance))


def _amount(noise_multiplier: float) -> str:
    if noise_multiplier < 1e-3:
        return "nothing"
    return "infinitely much" if math.isinf(noise_multiplier) else f"{noise_multiplier:.3g}"


def guessed(scores: CanaryScores) -> int:
    """Right guesses made of the scores alone: in where above halfway between the outer twentieths."""
    low, high = np.quantile(scores.values, (0.05, 0.95))
    return int(((scores.values > (low + high) / 2) == scores.present).sum())


def noticed(claim: Claim, canaries: int, significance: float) -> float:
    """Share of the stated noise at which nine of ten tests contradict the claim, by Gaussian noise.

    Without the assumption of Gaussian noise the test sees less; this number is then too high.
    """
    counts = np.arange(1, canaries + 1)
    enough = counts[beta.ppf(significance, counts, canaries - counts + 1) > ndtr(claim.mu / 2)]
    if not len(enough):
        return 0.0
    shares = np.linspace(0.01, 1, 100)
    power = binom.sf(enough[0] - 1, canaries, ndtr(claim.mu / 2 / shares))
    return float(shares[power >= 0.9].max(initial=0.0))
