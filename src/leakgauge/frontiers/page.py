"""The frontier's drawing and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from leakgauge.frontiers.results import Report, RowResult
from leakgauge.report.html import NBSP, NONE, figure, page
from leakgauge.report.plots import marks

Ends = tuple[float, ...]  # a value and the ends of its interval


@dataclass(frozen=True)
class RowDot:
    """A row in the drawing: accuracy in percent, and leakage under the two attackers."""

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
        a, seen = row.accuracy, [f.identified for f in row.leakage.each if f.identified]
        if a.value is not None and len(seen) == 2:
            naive, adapted = (_percents(i.rate, i.low, i.high) for i in seen)
            found.append(RowDot(row, _percents(a.value, a.low, a.high), naive, adapted))
    return found


@dataclass(frozen=True)
class Drawing:
    """Leakage against accuracy, in percent, as the template draws it."""

    takeaway: str
    chance: float
    accuracies: range  # accuracies, leakages: what the axes are marked with, from end to end
    leakages: range
    families: dict[str, list[RowDot]]
    bare: list[RowDot]


def drawing(rows: Sequence[RowResult]) -> Drawing | None:
    """`None` for fewer than two rows."""
    if len(found := dots(rows)) < 2:
        return None
    families: dict[str, list[RowDot]] = {}
    for dot in found:
        if not dot.row.bare:
            families.setdefault(dot.row.family, []).append(dot)
    low, high = (edge(end for d in found for end in d.accuracy) for edge in (min, max))
    return Drawing(
        takeaway=_takeaway(found),
        chance=max(100 * i.chance for r in rows if (f := r.leakage.naive) and (i := f.identified)),
        accuracies=marks(max(low - 1, 0), min(high + 1, 100)),
        leakages=marks(0, max(10, *(end for d in found for end in (*d.naive, *d.adapted)))),
        families=families,
        bare=[d for d in found if d.row.bare],
    )


def _takeaway(found: Sequence[RowDot]) -> str:
    said = [f"Undefended: {d.adapted[0]:.3g} (pictures identified, %)." for d in found if d.row.bare]
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
        plot=drawing(report.rows),
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
