"""The frontier's drawing and page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import yaml

from leakgauge.frontiers.results import Report, RowResult
from leakgauge.report.html import NBSP, NONE, figure, page
from leakgauge.report.plots import CEILING, GRID, INK, LABEL, MUTED, PAPER, SERIES, Plot, drawn
from leakgauge.study.judging.results import Finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("Row", "Accuracy", "Identified, naive", "Identified, adapted", "Mean PSNR, naive", "Mean PSNR, adapted")


@dataclass(frozen=True)
class Mark:
    value: float
    low: float
    high: float

    @staticmethod
    def of(value: float, low: float | None, high: float | None, scale: float = 1.0, most: float = math.inf) -> Mark:
        return Mark(*(min(scale * (value if end is None else end), most) for end in (value, low, high)))


@dataclass(frozen=True)
class RowDot:
    """A row in a plot: accuracy in percent where it was measured, and leakage under the two attackers."""

    row: RowResult
    naive: Mark
    adapted: Mark

    @property
    def accuracy(self) -> Mark | None:
        a = self.row.accuracy
        return None if a.value is None else Mark.of(a.value, a.low, a.high, 100)

    @property
    def stronger(self) -> Mark:
        """What the row leaks: under the better of the two attackers."""
        return max(self.adapted, self.naive, key=lambda mark: mark.value)


def identified(finding: Finding) -> Mark | None:
    """Share of identified pictures, in percent."""
    seen = finding.identified
    return None if seen is None else Mark.of(seen.rate, seen.low, seen.high, 100)


def quality(finding: Finding) -> Mark | None:
    """Mean PSNR in dB, cut at the ceiling."""
    psnr = finding.psnr
    return None if psnr is None else Mark.of(psnr.mean, psnr.low, psnr.high, most=CEILING)


def dots(rows: Sequence[RowResult], read: Callable[[Finding], Mark | None]) -> list[RowDot]:
    found = []
    for row in rows:
        naive, adapted = (f and read(f) for f in (row.leakage.naive, row.leakage.adapted))
        if naive and adapted:
            found.append(RowDot(row, naive, adapted))
    return found


def every(rows: Sequence[RowResult]) -> list[Plot]:
    """Both plots; against accuracy where it was measured, otherwise row by row."""
    naive = [f for r in rows if (f := r.leakage.naive)]
    chance = max((100 * f.identified.chance for f in naive if f.identified), default=None)
    nulls = [f.null_psnr.mean for f in naive if f.null_psnr]
    null = sum(nulls) / len(nulls) if nulls else None
    made = []
    for title, words, found, floor, name in (
        ("Identification", "pictures identified, %", dots(rows, identified), chance, "chance"),
        ("Quality", "mean PSNR, dB", dots(rows, quality), null, "nearest public picture"),
    ):
        if not found:
            continue
        trained = [d for d in found if d.accuracy is not None]
        whole, draw, height = title, partial(_by_row, found, words), 1.2 + 0.42 * len(found)
        if len(trained) > 1:
            whole, draw, height = f"Accuracy against {title.lower()}", partial(_by_accuracy, trained, words), 4.6
        made.append(drawn(whole, _takeaway(found, words), map(_cells, rows), height, partial(draw, floor, name)))
    return made


def _by_accuracy(found: Sequence[RowDot], words: str, floor: float | None, name: str, axes: Axes) -> None:
    """A line a family through the stronger attacker's marks; the naive one's is hollow."""
    families = list(dict.fromkeys(d.row.family for d in found if not d.row.bare))
    axes.set(xlabel="test accuracy, % (right is better)", ylabel=f"{words} (down is better)")
    axes.grid()
    for i, family in enumerate(families):
        # No two families share both colour and shape, so no meaning hangs on colour alone.
        colour, shape = SERIES[i % len(SERIES)][0], SERIES[(i + i // len(SERIES)) % len(SERIES)][1]
        mine = [(d, d.accuracy) for d in found if d.row.family == family and d.accuracy]
        axes.plot([a.value for _, a in mine], [d.stronger.value for d, _ in mine], "-", color=colour, lw=1.3, zorder=2)
        for d, a in mine:
            x, y = a.value, d.stronger
            axes.plot([x, x], [d.naive.value, d.adapted.value], ":", color=colour, lw=1.3, zorder=2)
            for xs, ys in (([x, x], [y.low, y.high]), ([a.low, a.high], [y.value] * 2)):
                axes.plot(xs, ys, "-", color=colour, lw=0.7, alpha=0.55, zorder=1)
            if d.row.defense != "none":
                axes.plot(x, d.naive.value, shape, color=colour, mfc=PAPER, ms=6, mew=1.2, zorder=3)
            axes.plot(x, d.adapted.value, shape, color=colour, ms=6, zorder=4)
        axes.plot([], [], f"{shape}-", color=colour, ms=6, label=family[:LABEL].lstrip("_") or "defence")
    for d in found:
        if d.row.bare and d.accuracy is not None:
            axes.axvline(d.accuracy.value, color=GRID, lw=1.2, ls="--", zorder=0)
            axes.plot(d.accuracy.value, d.adapted.value, "*", color=INK, ms=11, label="undefended", zorder=5)
    if floor is not None:
        axes.axhline(floor, color=INK, lw=1.1, ls=":", label=name, zorder=0)
    axes.plot([], [], "o", color=MUTED, mfc=PAPER, ms=6, mew=1.2, label="naive attacker (hollow)")


def _by_row(found: Sequence[RowDot], words: str, floor: float | None, name: str, axes: Axes) -> None:
    axes.set(xlabel=f"{words} (left is better)", ylim=(len(found) - 0.4, -0.9), yticks=[])
    axes.grid(axis="x")
    colour = SERIES[0][0]
    hollow = partial(axes.plot, marker="o", ls="", color=colour, mfc=PAPER, ms=5.5, mew=1.2)
    for y, d in enumerate(found):
        axes.plot([d.stronger.low, d.stronger.high], [y, y], "-", color=colour, lw=0.8)
        hollow(d.naive.value, y)
        axes.plot(d.adapted.value, y, "o", color=colour, ms=5.5)
        axes.annotate(d.row.label[:LABEL], (0, y), (2, 7), textcoords="offset points", fontsize=8.5)
    hollow([], [], label="naive attacker")
    axes.plot([], [], "o", label="adapted attacker", color=colour, ms=5.5)
    if floor is not None:
        axes.axvline(floor, color=INK, lw=1.1, ls=":", label=name)
    axes.set_xlim(left=0)
    axes.spines["left"].set_visible(False)


def _takeaway(found: Sequence[RowDot], words: str) -> str:
    said = [f"Undefended: {d.adapted.value:.3g} ({words})." for d in found if d.row.bare]
    if others := [d for d in found if not d.row.bare]:
        least = min(others, key=lambda d: d.stronger.value)
        moved = sum(d.adapted.value > d.naive.value for d in others)
        said.append(f"Least under the stronger attacker: {least.stronger.value:.3g}, {least.row.label}.")
        said.append(f"Knowing the defence helped the attacker in {moved} of {len(others)} rows.")
    return " ".join(said)


def _cells(row: RowResult) -> tuple[str, ...]:
    both = (row.leakage.naive, row.leakage.adapted)
    shares = [f"{f.identified.count} of {f.identified.n}" if f and f.identified else NONE for f in both]
    means = [figure(f.psnr.mean, 1, "dB") if f and f.psnr else NONE for f in both]
    return row.label, percent(row.accuracy.value), *shares, *means


def render(report: Report) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    return page(
        "frontiers",
        "page.html.j2",
        {"percent": percent, "size": size},
        report=report,
        rows=list(zip(report.rows, report.recommendation.notes, strict=True)),
        plots=every(report.rows),
        plot_columns=COLUMNS,
        plan=yaml.safe_dump(dict(report.config), sort_keys=False, allow_unicode=True, width=100),
    )


def percent(value: object, digits: int = 1) -> str:
    return figure(100 * value, digits, "%") if isinstance(value, int | float) else NONE


def size(count: object) -> str:
    if not isinstance(count, int | float):
        return NONE
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:.3g}{NBSP}{unit}"
