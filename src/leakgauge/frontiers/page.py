"""The frontier's drawing and page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import yaml

from leakgauge.frontiers.results import Report, RowResult
from leakgauge.report.html import page
from leakgauge.report.plots import GRID, INK, LABEL, MUTED, NBSP, NONE, PAPER, SERIES, Plot, drawn, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Ends = tuple[float, ...]  # a value and the ends of its interval


@dataclass(frozen=True)
class RowDot:
    """A row in a plot: accuracy in percent, and leakage under the two attackers."""

    row: RowResult
    accuracy: Ends
    naive: Ends
    adapted: Ends

    @property
    def stronger(self) -> Ends:
        """What the row leaks: under the better of the two attackers."""
        return max(self.adapted, self.naive, key=lambda ends: ends[0])


def _percents(value: float, low: float | None, high: float | None) -> Ends:
    return tuple(100 * (value if end is None else end) for end in (value, low, high))


def dots(rows: Sequence[RowResult]) -> list[RowDot]:
    """Rows whose accuracy was measured and that both attackers have a result of."""
    found = []
    for row in rows:
        if (a := row.accuracy).value is not None and row.judged:
            naive, adapted = (_percents(seen.rate, seen.low, seen.high) for seen, _ in row.both)
            found.append(RowDot(row, _percents(a.value, a.low, a.high), naive, adapted))
    return found


def plots(rows: Sequence[RowResult]) -> list[Plot]:
    """Leakage against accuracy; nothing for fewer than two rows."""
    if len(found := dots(rows)) < 2:
        return []
    chance = max(100 * dot.row.both[0][0].chance for dot in found)
    said = [f"Undefended: {d.adapted[0]:.3g} (pictures identified, %)." for d in found if d.row.bare]
    if others := [d for d in found if not d.row.bare]:
        least = min(others, key=lambda d: d.stronger[0])
        moved = sum(d.adapted[0] > d.naive[0] for d in others)
        said.append(f"Least under the stronger attacker: {least.stronger[0]:.3g}, {least.row.label}.")
        said.append(f"Knowing the defence helped the attacker in {moved} of {len(others)} rows.")
    draw = partial(_by_accuracy, found, chance)
    return [drawn("Accuracy against identification", " ".join(said), (), 4.6, draw)]


def _by_accuracy(found: Sequence[RowDot], chance: float, axes: "Axes") -> None:
    """A line a family through the stronger attacker's marks; the naive one's is hollow."""
    axes.set(xlabel="test accuracy, % (right is better)", ylabel="pictures identified, % (down is better)")
    axes.grid()
    for i, family in enumerate(dict.fromkeys(d.row.family for d in found if not d.row.bare)):
        # No two families share both colour and shape, so no meaning hangs on colour alone.
        colour, shape = SERIES[i % len(SERIES)][0], SERIES[(i + i // len(SERIES)) % len(SERIES)][1]
        each = [(d.accuracy, d.stronger, d.naive, d.adapted) for d in found if d.row.family == family]
        (x, left, right), (y, low, high), (naive, *_), (adapted, *_) = np.array(each).transpose(1, 2, 0)
        axes.vlines(x, low, high, color=colour, lw=0.7, alpha=0.55, zorder=1)
        axes.hlines(y, left, right, color=colour, lw=0.7, alpha=0.55, zorder=1)
        axes.vlines(x, naive, adapted, color=colour, lw=1.3, ls=":", zorder=2)
        axes.plot(x, y, "-", color=colour, lw=1.3, zorder=2)
        axes.plot(x, naive, shape, color=colour, mfc=PAPER, ms=6, mew=1.2, zorder=3)
        axes.plot(x, adapted, shape, color=colour, ms=6, zorder=4)
        axes.plot([], [], f"{shape}-", color=colour, ms=6, label=family[:LABEL].lstrip("_") or "defence")
    for d in found:
        if d.row.bare:
            axes.axvline(d.accuracy[0], color=GRID, lw=1.2, ls="--", zorder=0)
            axes.plot(d.accuracy[0], d.adapted[0], "*", color=INK, ms=11, label="undefended", zorder=5)
    axes.axhline(chance, color=INK, lw=1.1, ls=":", label="chance", zorder=0)
    axes.plot([], [], "o", color=MUTED, mfc=PAPER, ms=6, mew=1.2, label="naive attacker (hollow)")


def render(report: Report) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    return page(
        "frontiers",
        "page.html.j2",
        {"percent": percent, "size": size},
        report=report,
        rows=list(zip(report.rows, report.recommendation.notes, strict=True)),
        plots=plots(report.rows),
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
