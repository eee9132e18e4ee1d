"""The frontier's drawing and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import yaml

from leakgauge.frontiers.results import Report, RowResult
from leakgauge.report.html import NBSP, NONE, figure, page
from leakgauge.report.plots import CEILING, GRID, INK, LABEL, MUTED, PAPER, SERIES, Plot, drawn
from leakgauge.study.judging.results import Finding

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


def identified(finding: Finding) -> Ends | None:
    """Share of identified pictures, in percent."""
    seen = finding.identified
    return None if seen is None else _ends(seen.rate, seen.low, seen.high, 100)


def quality(finding: Finding) -> Ends | None:
    """Mean PSNR in dB, cut at the ceiling."""
    psnr = finding.psnr
    return None if psnr is None else tuple(min(end, CEILING) for end in _ends(psnr.mean, psnr.low, psnr.high))


def _ends(value: float, low: float | None, high: float | None, scale: float = 1.0) -> Ends:
    return tuple(scale * (value if end is None else end) for end in (value, low, high))


def dots(rows: Sequence[RowResult], read: Callable[[Finding], Ends | None]) -> list[RowDot]:
    """Rows whose accuracy was measured and that both attackers have a result of."""
    found = []
    for row in rows:
        a, (naive, adapted) = row.accuracy, (f and read(f) for f in (row.leakage.naive, row.leakage.adapted))
        if a.value is not None and naive and adapted:
            found.append(RowDot(row, _ends(a.value, a.low, a.high, 100), naive, adapted))
    return found


def every(rows: Sequence[RowResult]) -> list[Plot]:
    """Leakage against accuracy, as identification and as quality; nothing where it has fewer than two rows."""
    naive = [f for r in rows if (f := r.leakage.naive)]
    chance = max((100 * f.identified.chance for f in naive if f.identified), default=None)
    nulls = [f.null_psnr.mean for f in naive if f.null_psnr]
    null = sum(nulls) / len(nulls) if nulls else None
    made = []
    for title, words, read, floor, name in (
        ("identification", "pictures identified, %", identified, chance, "chance"),
        ("quality", "mean PSNR, dB", quality, null, "nearest public picture"),
    ):
        if len(found := dots(rows, read)) > 1:
            draw = partial(_by_accuracy, found, words, floor, name)
            made.append(drawn(f"Accuracy against {title}", _takeaway(found, words), (), 4.6, draw))
    return made


def _by_accuracy(found: Sequence[RowDot], words: str, floor: float | None, name: str, axes: Axes) -> None:
    """A line a family through the stronger attacker's marks; the naive one's is hollow."""
    axes.set(xlabel="test accuracy, % (right is better)", ylabel=f"{words} (down is better)")
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
    if floor is not None:
        axes.axhline(floor, color=INK, lw=1.1, ls=":", label=name, zorder=0)
    axes.plot([], [], "o", color=MUTED, mfc=PAPER, ms=6, mew=1.2, label="naive attacker (hollow)")


def _takeaway(found: Sequence[RowDot], words: str) -> str:
    said = [f"Undefended: {d.adapted[0]:.3g} ({words})." for d in found if d.row.bare]
    if others := [d for d in found if not d.row.bare]:
        least = min(others, key=lambda d: d.stronger[0])
        moved = sum(d.adapted[0] > d.naive[0] for d in others)
        said.append(f"Least under the stronger attacker: {least.stronger[0]:.3g}, {least.row.label}.")
        said.append(f"Knowing the defence helped the attacker in {moved} of {len(others)} rows.")
    return " ".join(said)


def render(report: Report) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    return page(
        "frontiers",
        "page.html.j2",
        {"percent": percent, "size": size},
        report=report,
        rows=list(zip(report.rows, report.recommendation.notes, strict=True)),
        plots=every(report.rows),
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
