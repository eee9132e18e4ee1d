"""Rules by which kept rows bear a claim out. Each decides by an interval, never by a mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from leakgauge.intervals import Interval, mean_interval

LEVEL = 0.95


class Outcome(IntEnum):
    """What one comparison came to."""

    HOLDS = 0
    OPEN = 1
    CONTRARY = 2


@dataclass(frozen=True)
class Reading:
    """What a rule found.

    Attributes:
        ours: the measured number or difference with its interval, as printed.
        why: a clause, for anything but `HOLDS`.
    """

    outcome: Outcome
    ours: str = "–"
    why: str = ""


def number(value: float) -> str:
    """Three digits: ``300``, ``24.1``, ``.273``, ``0``."""
    size = abs(value)
    text = f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"
    if float(text) == 0:
        return "0"
    return text.replace("0.", ".", 1) if size < 1 else text


def signed(value: float) -> str:
    """``+4.20``."""
    return ("+" if value > 0 else "") + number(value)


def interval_text(mean: str, ends: Interval) -> str:
    """``24.1 [23.9, 24.2]``."""
    return mean + ("" if ends.low is None or ends.high is None else f" [{number(ends.low)}, {number(ends.high)}]")


def judged(ends: Interval, least: float, most: float) -> Outcome:
    """An interval against a range: wholly inside, wholly outside, or neither."""
    if ends.low is None or ends.high is None:
        return Outcome.OPEN
    if least <= ends.low and ends.high <= most:
        return Outcome.HOLDS
    return Outcome.CONTRARY if ends.high < least or ends.low > most else Outcome.OPEN


def within(units: Sequence[float], value: float, below: float, above: float, confidence: float = LEVEL) -> Reading:
    """The mean lies from `value` − `below` to `value` + `above`; infinite where that side is no failure."""
    ends, mean = mean_interval(units, confidence), statistics.fmean(units)
    ours = interval_text(number(mean), ends)
    if ends.low is None:
        return Reading(Outcome.OPEN, ours, "one unit has no interval")
    if math.isinf(above):
        wanted = f"at least {number(value - below)}"
    elif math.isinf(below):
        wanted = f"at most {number(value + above)}"
    else:
        wanted = f"{number(value - below)} to {number(value + above)}"
    return Reading(judged(ends, value - below, value + above), ours, f"asked: {wanted}")


def apart(
    one: Sequence[float], other: Sequence[float], *, lower: bool, least: float, most: float, confidence: float = LEVEL
) -> Reading:
    """How far `one` is better than `other`, in pairs where there are as many of both, from `least` to `most`.

    What is printed is `one` − `other`, whichever is better.
    """
    sign = -1.0 if lower else 1.0
    ends = difference(one, other, confidence)
    ours = interval_text(signed(statistics.fmean(one) - statistics.fmean(other)), ends)
    if ends.low is None or ends.high is None:
        return Reading(Outcome.OPEN, ours, "one unit has no interval")
    better = sorted((sign * ends.low, sign * ends.high))
    why = f"{number(statistics.fmean(one))} against {number(statistics.fmean(other))}"
    return Reading(judged(Interval(*better), least, most), ours, why)


def difference(one: Sequence[float], other: Sequence[float], confidence: float = LEVEL) -> Interval:
    """Interval of the difference of two means: of pairs where there are as many of both, else independent."""
    if len(one) == len(other):
        return mean_interval([a - b for a, b in zip(one, other, strict=True)], confidence)
    ends = [mean_interval(units, confidence) for units in (one, other)]
    if any(end.low is None for end in ends):
        return Interval(None, None)
    half = math.hypot(*((end.high - end.low) / 2 for end in ends if end.low is not None and end.high is not None))
    gap = statistics.fmean(one) - statistics.fmean(other)
    return Interval(gap - half, gap + half)


def together(found: Sequence[Reading]) -> Reading:
    """Several comparisons as one: decided only where all agree."""
    counts = [sum(r.outcome is outcome for r in found) for outcome in Outcome]
    ours = f"holds in {counts[0]} of {len(found)} comparisons"
    said = f"{counts[0]} hold, {counts[1]} open, {counts[2]} contrary"
    for outcome in (Outcome.HOLDS, Outcome.CONTRARY):
        if counts[outcome] == len(found):
            return Reading(outcome, ours, said)
    return Reading(Outcome.OPEN, ours, f"mixed: {said}" if counts[0] and counts[2] else said)
