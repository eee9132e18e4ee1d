"""Is the noise really there? A stated ε against what canaries show: lower bounds on ε from guesses about who was in.

Each canary is in with probability ½, by a coin of its own, in a call of its own. Whoever guesses better than the
privacy claim permits refutes the claim.
"""

import math
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass
from enum import Enum
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.defense import child_generator
from leakgauge.defenses.steps import PerExampleScale, Scale
from leakgauge.errors import Checked, InputError, limited, positive, require
from leakgauge.intervals import proportion_lower
from leakgauge.privacy.accounting import Unit, delta_of, epsilon_of_mu, epsilon_of_noise, largest
from leakgauge.privacy.guarantee import Mechanism, NoGuarantee, mechanism
from leakgauge.privacy.replay import Code
from leakgauge.tensors import map_tensors

NORM = 10.0  # length of a canary in clips. Above 1 it shows whether single updates are clipped at all.
BESIDE = 4  # updates of a call that takes any number
QUIET = 0.25  # share of the mean variance below which an entry has less noise than the others
CROWDED = 2.0  # times the largest eigenvalue of independent noise, from which many outputs lie in one direction

AN_ENTRY, SHORTEST = 20, 20
"""Canaries for each entry of updates so short that the noise of any two entries is compared; and the least such."""


@dataclass(frozen=True)
class NoisePath:
    """A clip-and-noise path under test: a function of the user's own, or a defence of this package."""

    #: ``(one update a row, generator) → what leaves``: clip, sum or mean, and noise
    send: Callable[[Float[Tensor, "n d"], torch.Generator], Float[Tensor, " d"]]
    unit: Unit  #: whose update a row is
    updates: int | None = None  #: rows of a call, where the path or its ε depends on their number; `None` takes any.
    #: noise_multiplier, clip: as a defence states them: noise on the sum over one unit's bound, and that bound
    noise_multiplier: float = 0.0
    clip: float = 0.0

    @staticmethod
    def of_function(
        function: Callable[..., Any], unit: Unit, updates: int | None = None, *, numpy: bool = False
    ) -> "NoisePath":
        """A function ``(updates (n, d), generator) → (d,)``, of PyTorch tensors or NumPy arrays.

        It must draw all its noise from the generator that it is given, or from one of its own, new in every call.
        """
        code = Code(function, numpy)

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            return code.run(rows, int(torch.randint(2**62, (), generator=generator))).out

        return NoisePath(send, unit, updates)

    @staticmethod
    def of_defense(defense: Defense, examples: int | None = None) -> "NoisePath":
        """The stages of a defence from one unit's update to the wire, with no network before them.

        A client's own noise (client-dp, clip + noise) is tested with one update a call, as the server sees each.
        `examples`: of a step; needed where the ε depends on it (fed-cdp, clip-examples + noise). Raises `InputError`:
        the defence states no ε, with the reason.
        """
        found = mechanism(defense, examples=examples, layers=1)
        if isinstance(found, NoGuarantee):
            raise InputError("defense", f"states no ε ({found.reason})", "give dp-sgd, client-dp, or clip with noise")
        bound = next(s.bound for s in reversed(steps_of(defense)) if isinstance(s, Scale | PerExampleScale))

        def send(rows: Tensor, generator: torch.Generator) -> Tensor:
            changed = defense.on_example_gradients({"update": rows}, generator)
            return defense.on_update(map_tensors(lambda g: g.mean(0), changed), generator)["update"]

        of_any_number = isinstance(mechanism(defense, layers=1), Mechanism)
        rows = 1 if found.unit is Unit.CLIENT else None if of_any_number else examples
        return NoisePath(send, found.unit, rows, found.noise_multiplier, bound)


@dataclass(frozen=True, eq=False)
class CanaryScores:
    """How much of each canary is in the outputs, whether it was in the input (the truth), and what the output holds
    beside it, squared."""

    values: Float[np.ndarray, " m"]
    present: Bool[np.ndarray, " m"]
    beside: Float[np.ndarray, " m"]

    @property
    def right(self) -> int:
        """Right guesses made of the scores alone: in where above halfway between the outer twentieths."""
        low, high = np.quantile(self.values, (0.05, 0.95)) if len(self.values) else (0.0, 0.0)
        return int(((self.values > (low + high) / 2) == self.present).sum())

    @property
    def quiet(self) -> "CanaryScores":
        """Calls with less noise than others, as many with their canary as without. What an output holds beside a canary
        says nothing of whether that was in."""
        low = self.beside < QUIET * np.median(self.beside)
        both = [np.flatnonzero(low & one) for one in (self.present, ~self.present)]
        calls = np.concatenate([one[: min(map(len, both))] for one in both])
        return CanaryScores(self.values[calls], self.present[calls], self.beside[calls])

    @property
    def noise(self) -> float:
        """Standard deviation of the noise over how much more is in the scores of those that were in; infinite where
        nothing is."""
        inside, outside = self.values[self.present], self.values[~self.present]
        if min(len(inside), len(outside)) < 2 or (step := float(inside.mean() - outside.mean())) <= 0:
            return math.inf
        spread = math.sqrt((inside.var(ddof=1) + outside.var(ddof=1)) / 2)
        return spread / step if spread > 1e-9 * step else 0.0


def scores(
    path: NoisePath, count: int, size: int, *, clip: float, rounds: int, generator: torch.Generator
) -> CanaryScores:
    """Sends canaries of random directions one by one, each in or replaced by a zero update by a coin of its own, so
    that the number of updates says nothing.

    Beside it stand, where a call takes several, updates of zeros, as some faults grow with their number, and one of
    length C in the opposite direction: clipping their sum instead of each then moves the output by twice the clip. The
    mean of `rounds` releases counts. What all outputs have in common is subtracted: noise that is drawn anew each time
    has no such part. What entries with little noise say counts for more, and what directions say in which many outputs
    lie counts for nothing: noise of few numbers leaves the others bare. Of short updates every direction counts by how
    little noise it has: entries may share theirs.
    """
    canaries = torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1)
    present, outputs = torch.randint(0, 2, (count,), generator=generator).bool(), torch.empty(count, size).double()
    for i, canary in enumerate(canaries):
        batch = torch.zeros(path.updates or BESIDE, size)
        batch[0] = canary * (NORM * clip) * present[i]
        batch[1:2] = -clip * canary
        released = [path.send(batch.clone(), child_generator(generator)).double() for _ in range(rounds)]
        outputs[i] = out = torch.stack(released).mean(0)
        finite = bool(out.isfinite().all())
        require(finite, "path", "returned NaN or infinity", "clip must leave a zero update as it is")
    outputs -= outputs.mean(0)
    along = (canaries.double() * outputs).sum(1)
    beside = (outputs.square().sum(1) - along.square()).clamp_min(0)
    if size * AN_ENTRY <= count:
        found, directions = torch.linalg.eigh(outputs.T @ outputs / count)
        directions = directions / found.clamp_min(1e-9 * float(found[-1]) + 1e-300).sqrt()
        values = ((canaries.double() @ directions) * (outputs @ directions)).sum(1)
        return CanaryScores(values.numpy(), present.numpy(), beside.numpy())
    spread = outputs.square().mean(0)
    spread = torch.where(spread < QUIET * spread.mean(), spread, spread.mean()).clamp_min(clip**2 / size)
    outputs, canaries = ((each / spread.sqrt()).float() for each in (outputs, canaries))
    sizes, ways = torch.linalg.eigh((outputs @ outputs.T).double())
    shared = sizes > CROWDED * sizes.mean() * (1 + math.sqrt(count / size)) ** 2
    common = outputs.T @ (ways[:, shared] / sizes[shared].sqrt()).float()
    values = (canaries * outputs).sum(1) - ((canaries @ common) * (outputs @ common)).sum(1)
    return CanaryScores(values.double().numpy(), present.numpy(), beside.numpy())


def refuted(
    correct: int, made: int, *, of: int | None = None, gaussian: bool, significance: float, delta: float
) -> float:
    """The largest ε at δ that so many right guesses in independent runs refute, each made about a coin; 0 for none.

    A guess is right with probability at most (e^ε + δ)/(1 + e^ε) under any (ε, δ)-private release (Kairouz, Oh &
    Viswanath, 2015), and at most Φ(μ/2) under one that is μ-GDP (`gaussian`): the count is below a binomial. `of`: runs
    of which those guessed about are the ones with little noise, which anybody sees: a share p of runs that are no more
    than (ε, δ/p)-private makes all no more than (ε, δ)-private.
    """
    if of is not None:
        significance /= 2
        delta /= max(proportion_lower(made, of, 1 - significance), delta)
    if not made or delta >= 1:
        return 0.0
    rate = proportion_lower(correct, made, 1 - significance)
    if gaussian:
        return epsilon_of_mu(2 * max(0.0, float(ndtri(rate))), delta)
    return math.log(max((rate - delta) / (1 - rate), 1.0))


CONFIDENCE = 0.99


@dataclass(frozen=True)
class Claim(Checked):
    """What is stated: (ε, δ)-differential privacy of `rounds` releases, each with every unit in it; of `gaussian` noise
    that of μ-GDP with `mu`."""

    epsilon: float = limited(MISSING, lambda epsilon: 0 < epsilon < 500, "give a positive number below 500")
    delta: float = limited(MISSING, lambda delta: 0 < delta < 1, "give a number below 1 / number of units")
    rounds: int = positive(1, "whole number")
    gaussian: bool = True

    @staticmethod
    def of_noise(noise_multiplier: float, delta: float, rounds: int = 1) -> "Claim":
        """The exact ε of `rounds` Gaussian releases without sampling: μ = √rounds/z."""
        return Claim(epsilon_of_noise(noise_multiplier, delta, rounds), delta, rounds)

    @property
    def mu(self) -> float:
        """The largest for which μ-GDP implies ε at δ. One Gaussian mechanism that states both without slack has it."""
        return largest(lambda mu: self.delta - delta_of(mu, self.epsilon), 1e-12)

    @property
    def noise_multiplier(self) -> float:
        return math.sqrt(self.rounds) / self.mu


class ClaimOutcome(Enum):
    """What a test says of a claim; it never confirms one."""

    CONTRADICTED = "contradicted"
    NOT_CONTRADICTED = "not contradicted"
    NO_POWER = "no power"


@dataclass(frozen=True)
class PrivacyTest:
    """A claim and what speaks against it."""

    claim: Claim
    unit: Unit
    canaries: int
    guesses: int  #: those that speak against the claim the most: one a canary, or one a call with little noise
    correct: int  #: right ones of these
    epsilon: float  #: lower bound on ε, of any noise, or of Gaussian noise where the claim is of it
    measured: float  #: noise over the clip that the scores suggest. An estimate, no bound.
    noticed: float  #: a path with at most this share of the stated noise is contradicted in nine of ten tests

    @property
    def outcome(self) -> ClaimOutcome:
        """`NO_POWER`: the output shows the canaries less than the claim allows by half, so that no fault could be."""
        if self.epsilon > self.claim.epsilon:
            return ClaimOutcome.CONTRADICTED
        powerless = self.measured > 2 * self.claim.noise_multiplier
        return ClaimOutcome.NO_POWER if powerless else ClaimOutcome.NOT_CONTRADICTED

    @property
    def sentence(self) -> str:
        stated = f"ε = {self.claim.epsilon:.3g} (δ = {self.claim.delta:g}, unit: one {self.unit.value})"
        found = f"{100 * CONFIDENCE:.0f} % confidence"
        z = self.claim.noise_multiplier
        measured = "infinitely much" if math.isinf(self.measured) else f"{self.measured:.3g}"
        measured = "nothing" if self.measured < 1e-3 else measured
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

    @property
    def lines(self) -> tuple[str, ...]:
        """What the sentence rests on, and what was not tested."""
        rounds, kind = self.claim.rounds, "Gaussian" if self.claim.gaussian else "any"
        over = "1 release" if rounds == 1 else f"{rounds} releases"
        quiet = "" if self.guesses == self.canaries else ", of calls with less noise than others"
        return (
            f"stated: over {over}, each with every unit in it: no sampling counted",
            f"unit: one {self.unit.value}; adjacency: add or remove one, their number known",
            f"right guesses: {self.correct} of {self.guesses}{quiet}; {kind} noise",
            "not tested: the accountant, the sampling, what leaves beside this output",
        )

    def to_json(self) -> dict[str, object]:
        said = {"outcome": self.outcome.value, "sentence": self.sentence, "unit": self.unit.value}
        measured = self.measured if math.isfinite(self.measured) else None
        adjacency = "add or remove one unit, their number known"
        return asdict(self) | said | {"measured": measured, "adjacency": adjacency, "confidence": CONFIDENCE}


def check_claim(
    path: NoisePath, claim: Claim, *, clip: float, generator: torch.Generator, canaries: int = 1000, size: int = 10_000
) -> PrivacyTest:
    """Bounds ε from below by so many canaries of `size` coordinates (adjacency: add or remove one unit, their number
    known). They are ten times as long as `clip`, C, the stated bound of one unit's contribution. Memory:
    24·canaries·size bytes."""
    require(0 < clip < float("inf"), "clip", f"is {clip}", "give the norm that each update is clipped to")
    require(canaries >= 20, "canaries", f"is {canaries}", "give at least 20; 1000 find half of the noise missing")
    sizes = [size, short] if SHORTEST <= (short := canaries // AN_ENTRY) < size else [size]
    significance, judged = (1 - CONFIDENCE) / (2 * len(sizes)), list[tuple[float, int, CanaryScores]]()
    for numbers in sizes:
        seen = scores(path, canaries, numbers, clip=clip, rounds=claim.rounds, generator=generator)
        for one, of in ((seen, None), (seen.quiet, canaries)):
            how = partial(refuted, gaussian=claim.gaussian, significance=significance, delta=claim.delta)
            judged.append((how(one.right, len(one.values), of=of), one.right, one))
    epsilon, correct, seen = max(judged, key=lambda found: found[0])
    measured, least = math.sqrt(claim.rounds) * seen.noise, noticed(claim, canaries, significance)
    return PrivacyTest(claim, path.unit, canaries, len(seen.values), correct, epsilon, measured, least)


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
