"""Limits of the inspection's rules from honest models alone, for `leakgauge.inspection.rule`.

The inspection alarms when any rule does, so the false alarms of all rules add up at worst. A budget of `RATE` is
divided equally among the rules; what a rule's limit must exceed is the largest of

1. its floor (`FLOORS`): what the statistic's unit says cannot matter, where honest models nearly all have zero;
2. `MARGIN` times the largest honest statistic seen (for shares of 1 see `SHARES`);
3. the statistic that one honest model in rules/`RATE` exceeds, extrapolated from the largest ones.

For 3 the upper tail is taken to fall off as a power of the statistic, P(S > s) ∝ s^(−1/ξ), with Hill's estimate of ξ
from the k = max(10, 5 %) largest values (Hill, *Annals of Statistics*, 1975). It is cautious where a tail is lighter,
and at most `REACH` times the largest value: a few models say nothing of what lies farther. Models derived
from one trained network are alike, so k counts fewer independent ones than it seems. A limit beyond what
a rule's statistic can reach switches the rule off, which is the right answer to a rule that honest models set off.
Crafted models have no part in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from leakgauge.errors import require
from leakgauge.inspection.rule import Limits
from reproduce.inspection.judging import HONEST, Judged

RATE = 0.005
"""False alarms of the whole inspection that the limits aim at."""
MARGIN = 1.25
REACH = 2.0
LEAST = 1e-6
"""A limit must be positive."""

FLOORS: Mapping[str, float] = {
    "taps": 1.5,
    "copies": 2.5,
    "not-finite": 0.5,
    "constant-rows": 8.0,
    "decoy-class": 2.5,
    "extreme-bias": 12.0,
    "huge-weights": 60.0,
    "trap-weights": 6.0,
    "sub-models": 0.2,
    "input-in-depth": 0.5,
}
"""Below these a statistic is no sign of anything: a few rows with one entry, a weight of 60, one example of twelve."""
SHARES = ("input-in-depth", "sub-models")
"""Statistics of at most 1: their limit lies at most half-way between the largest honest value and 1."""


def read_limits(path: Path) -> Limits:
    """Those of a file of the package's form."""
    return Limits(**json.loads(path.read_text(encoding="utf-8")))


def write_limits(path: Path, limits: Limits) -> None:
    """The inverse of `read_limits`."""
    path.write_text(json.dumps(asdict(limits), indent=1, allow_nan=False) + "\n", encoding="utf-8")


def limit(values: Sequence[float], *, share: float, floor: float = LEAST) -> float:
    """The statistic that a share of at most `share` of honest models should reach; see the module.

    Raises:
        InputError: fewer than ten values.
    """
    require(len(values) >= 10, "values", f"are {len(values)}", "judge at least ten honest models")
    ordered = sorted(values, reverse=True)
    largest = ordered[0]
    if largest <= 0:
        return max(floor, LEAST)
    positive = sum(v > 0 for v in ordered)
    k = min(max(10, math.ceil(0.05 * len(ordered))), len(ordered) - 1, positive - 1)
    beyond = largest
    if k >= 3 and ordered[k] > 0:
        tail = sum(math.log(v / ordered[k]) for v in ordered[:k]) / k
        beyond = ordered[k] * max(1.0, k / (len(ordered) * share)) ** tail
    return max(floor, LEAST, MARGIN * largest, min(beyond, REACH * largest))


def calibrated(lines: Sequence[Judged], kept: Limits, made_by: str) -> Limits:
    """Limits of all rules with statistics in `lines`; rules that no line measured keep those of `kept`."""
    honest = [line for line in lines if line.kind == HONEST]
    # A model that was judged in both scenarios counts once a rule.
    found: dict[str, dict[int, float]] = {}
    for line in honest:
        for rule, statistic in line.statistics.items():
            found.setdefault(rule, {})[line.index] = statistic
    names = sorted(found)
    share = RATE / max(1, len(names))
    limits = dict(kept.limits)
    for name in names:
        values = list(found[name].values())
        bound = limit(values, share=share, floor=FLOORS.get(name, LEAST))
        limits[name] = round_up(min(bound, (1 + max(values)) / 2) if name in SHARES else bound)
    return Limits(limits=dict(sorted(limits.items())), made_by=made_by, models=len({line.index for line in honest}))


def round_up(value: float) -> float:
    """Three digits, never downwards."""
    step = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.ceil(value / step - 1e-9) * step:.3g}")
