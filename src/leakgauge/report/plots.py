"""What the page draws of every image, in numbers: `plots.html.j2` puts them into SVG, in the page's own colours.

PSNR is drawn up to `CEILING` dB: above it a copy is visually perfect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.report.rows import ImageDot, ReportRow

CEILING, STRIPS = 60.0, 12
DOTS = 120  # images drawn of a case: the worst, and of the others some at equal distances
COLUMNS = ("Scenario and attack", "Images", "Mean PSNR", "Worst image", "Mean null", "Gradients a trial")
MARKS = 9  # numbers beside an axis at most


def marks(low: float, high: float) -> range:
    """Round numbers that an axis is marked with: the first is at most the lowest value, the last above the highest or
    equal to it."""
    step = next(step for step in (1, 2, 5, 10, 20) if high - low <= (MARKS - 2) * step)
    return range(step * math.floor(low / step), step * math.ceil(high / step) + 1, step)


@dataclass(frozen=True)
class Distribution:
    """A strip a finding, every image a dot over the null baselines as a bar; dots are filled where they are identified,
    so that no meaning hangs on colour."""

    takeaway: str
    marks: range  # of the axis, in dB from 0
    is_cut: bool
    strips: list[tuple[ReportRow, list[ImageDot]]]
    rows: list[tuple[str, ...]]  # the numbers behind it, under `COLUMNS`


def distribution(rows: Sequence[ReportRow]) -> Distribution:
    pairs = [(d.psnr, d.null) for row in rows for d in row.dots if d.null is not None]
    above = sum(x > n for x, n in pairs)
    takeaway = f"Closer than their own best null baseline: {above} of {len(pairs)} images."
    takeaway += f" The worst {STRIPS} of {len(rows)} cases are drawn." if len(rows) > STRIPS else ""
    takeaway += f" Of a case with many images {DOTS} are drawn." if max(len(r.dots) for r in rows) > DOTS else ""
    top = max([20.0, *(d.psnr for row in rows[:STRIPS] for d in row.dots)])
    strips = [(row, _some(sorted(row.dots, key=_gravity, reverse=True))) for row in rows[:STRIPS]]
    return Distribution(takeaway, marks(0, min(top, CEILING)), top > CEILING, strips, list(map(_numbers, rows)))


def _gravity(dot: ImageDot) -> tuple[bool, float]:
    return dot.identified, dot.psnr


def _some(dots: list[ImageDot]) -> list[ImageDot]:
    """Half of `DOTS` are the first, the others lie at equal distances among the rest."""
    half = DOTS // 2
    step = (len(dots) - half) / half
    return dots if len(dots) <= DOTS else [*dots[:half], *(dots[half + int(i * step)] for i in range(half))]


def _numbers(row: ReportRow) -> tuple[str, ...]:
    psnr, nulls, cost = [d.psnr for d in row.dots], row.nulls, row.finding.cost.gradient_evaluations
    means = (row.mean, max(psnr), sum(nulls) / len(nulls) if nulls else None)
    decibels = ("—" if value is None else f"{value:.1f}\u00a0dB" for value in means)
    return row.label, str(len(psnr)), *decibels, f"{cost / row.finding.trials:,.0f}"
