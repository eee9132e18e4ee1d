"""Rules by which kept rows bear a claim out. Each decides by a 95 % interval, never by a mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from leakgauge.intervals import Interval, mean_interval
from reproduce.claims.quantity import Published, Quantity


class Outcome(IntEnum):
    """From best to worst: what several rules together come to is the worst of them."""

    HOLDS = 0
    INCONCLUSIVE = 1
    CONTRARY = 2
    NOT_RUN = 3


@dataclass(frozen=True)
class Reading:
    """What a rule found.

    Attributes:
        ours: the measured number with its interval, as printed.
        why: a clause, for anything but `HOLDS`.
    """

    outcome: Outcome
    ours: str = "–"
    why: str = ""


class Rule(Protocol):
    """Reads kept rows."""

    @property
    def published(self) -> str:
        """The paper's number, or difference of two, as printed; "–" where it gives none."""
        ...

    @property
    def quantities(self) -> Sequence[Quantity]:
        """The rows that it reads, the paper's own attack first."""
        ...

    def read(self) -> Reading: ...


def number(value: float) -> str:
    """Three digits: ``300``, ``24.1``, ``.273``, ``0``."""
    size = abs(value)
    text = f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1) if size < 1 else text


def interval_text(mean: float, ends: Interval) -> str:
    """``24.1 [23.9, 24.2]``."""
    return number(mean) + (
        "" if ends.low is None or ends.high is None else f" [{number(ends.low)}, {number(ends.high)}]"
    )


def signed(value: float) -> str:
    """``+4.20``."""
    return ("+" if value > 0 else "") + number(value)


def sorted_ends(ends: list[float | None]) -> tuple[float | None, float | None]:
    """The smaller first; both are known or none is."""
    known = sorted(end for end in ends if end is not None)
    return (known[0], known[1]) if len(known) == 2 else (None, None)


def _judged(low: float, high: float, least: float, most: float) -> Outcome:
    """An interval against a range: wholly inside, wholly outside, or neither."""
    if least <= low and high <= most:
        return Outcome.HOLDS
    return Outcome.CONTRARY if high < least or low > most else Outcome.INCONCLUSIVE


@dataclass(frozen=True)
class Within:
    """The number lies in a range around the published one; either side may be open.

    Attributes:
        below, above: how far from the published number it may lie; infinite where that side is no failure.
        printed: whether the paper prints the number; else it is ours, and none stands beside.
    """

    what: Quantity
    paper: Published | float
    below: float
    above: float
    printed: bool = True

    @property
    def target(self) -> float:
        """The paper's number."""
        return self.paper.value if isinstance(self.paper, Published) else self.paper

    @property
    def published(self) -> str:
        return number(self.target) if self.printed else "–"

    @property
    def quantities(self) -> Sequence[Quantity]:
        return (self.what,)

    def read(self) -> Reading:
        units = self.what.units
        if not units:
            return Reading(Outcome.NOT_RUN)
        ends, mean = mean_interval(units), statistics.fmean(units)
        ours = interval_text(mean, ends)
        if ends.low is None or ends.high is None:
            return Reading(Outcome.INCONCLUSIVE, ours, "one run has no interval")
        outcome = _judged(ends.low, ends.high, self.target - self.below, self.target + self.above)
        if math.isinf(self.above):
            wanted = f"at least {number(self.target - self.below)}"
        elif math.isinf(self.below):
            wanted = f"at most {number(self.target + self.above)}"
        else:
            wanted = f"{number(self.target - self.below)} to {number(self.target + self.above)}"
        return Reading(outcome, ours, f"asked: {wanted}")


@dataclass(frozen=True)
class Ahead:
    """`better` is ahead of `worse` by more than a margin, image by image where both have the same ones.

    Attributes:
        lower: whether lower is better. What is printed is `better` − `worse` all the same.
        paper: the paper's two numbers, where it has them.
        within: asks that the two lie within this of each other instead.
    """

    better: Quantity
    worse: Quantity
    lower: bool = False
    margin: float = 0.0
    paper: tuple[Published | float, Published | float] | None = None
    within: float | None = None

    @property
    def published(self) -> str:
        if self.paper is None:
            return "–"
        one, other = (p.value if isinstance(p, Published) else p for p in self.paper)
        return signed(one - other)

    @property
    def quantities(self) -> Sequence[Quantity]:
        return self.better, self.worse

    def read(self) -> Reading:
        one, other = self.better.units, self.worse.units
        if not one or not other:
            return Reading(Outcome.NOT_RUN)
        sign = -1.0 if self.lower else 1.0
        gap, ends = sign * (statistics.fmean(one) - statistics.fmean(other)), difference(one, other, sign)
        shown = [sign * end if end is not None else None for end in (ends.low, ends.high)]
        ours = signed(sign * gap) + interval_text(0, Interval(*sorted_ends(shown))).removeprefix("0")
        if ends.low is None or ends.high is None:
            return Reading(Outcome.INCONCLUSIVE, ours, "one image and one seed have no interval")
        least, most = (self.margin, math.inf) if self.within is None else (-self.within, self.within)
        outcome = _judged(ends.low, ends.high, least, most)
        means = f"{number(statistics.fmean(one))} against {number(statistics.fmean(other))}"
        limit = self.margin if self.within is None else self.within
        asked = f"; asked: apart by at most {number(abs(limit))}" if limit else ""
        return Reading(outcome, ours, means + asked)


def difference(one: Sequence[float], other: Sequence[float], sign: float = 1.0) -> Interval:
    """95 % interval of the difference of two means: of pairs where there are as many of both, else independent."""
    if len(one) == len(other):
        return mean_interval([sign * (a - b) for a, b in zip(one, other, strict=True)])
    ends = [mean_interval(units) for units in (one, other)]
    if any(end.low is None for end in ends):
        return Interval(None, None)
    half = math.hypot(*((end.high - end.low) / 2 for end in ends if end.low is not None and end.high is not None))
    gap = sign * (statistics.fmean(one) - statistics.fmean(other))
    return Interval(gap - half, gap + half)


@dataclass(frozen=True)
class Each:
    """Several rules that one claim needs: it holds where all do, and is contrary where one is.

    Attributes:
        mixed: where some hold and others do not nothing is decided, and how many of each is said.
    """

    rules: tuple[Rule, ...]
    mixed: bool = False

    @property
    def published(self) -> str:
        return self.rules[0].published

    @property
    def quantities(self) -> Sequence[Quantity]:
        return tuple(q for rule in self.rules for q in rule.quantities)

    def read(self) -> Reading:
        found = [rule.read() for rule in self.rules]
        counts = [sum(r.outcome is outcome for r in found) for outcome in Outcome]
        worst = max(found, key=lambda r: r.outcome)
        if counts[Outcome.NOT_RUN] and not counts[Outcome.CONTRARY]:
            return Reading(Outcome.NOT_RUN if counts[Outcome.NOT_RUN] == len(found) else Outcome.INCONCLUSIVE)
        ours = f"in {counts[Outcome.HOLDS]} of {len(found)}"
        if self.mixed and counts[Outcome.HOLDS] < len(found):
            said = f"ahead in {counts[0]}, level in {counts[1]}, behind in {counts[2]} comparisons"
            return Reading(Outcome.INCONCLUSIVE if counts[Outcome.HOLDS] else worst.outcome, ours, said)
        if counts[Outcome.CONTRARY]:
            worst = next(r for r in found if r.outcome is Outcome.CONTRARY)
        return Reading(worst.outcome, ours, worst.why)
