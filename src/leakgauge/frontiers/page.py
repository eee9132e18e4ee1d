"""The frontier's drawing and page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from leakgauge.frontiers.plan import UNDEFENDED
from leakgauge.frontiers.report import Report
from leakgauge.frontiers.results import RowFinding, RowResult
from leakgauge.report.html import NBSP, figure, page
from leakgauge.report.plots import CEILING, GRID, INK, LABEL, MUTED, PAPER, SERIES, Plot, drawn
from leakgauge.report.rows import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("Row", "Accuracy", "Identified, naive", "Identified, adapted", "Mean PSNR, naive", "Mean PSNR, adapted")


@dataclass(frozen=True)
class Mark:
    """A value with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class RowDot:
    """One row of the plot: accuracy in percent, and leakage under the two attackers."""

    family: str
    label: str
    accuracy: Mark | None
    naive: Mark
    adapted: Mark
    attackers: bool

    @property
    def stronger(self) -> Mark:
        """What the row leaks: under the better of the two attackers."""
        return max(self.adapted, self.naive, key=lambda mark: mark.value)


Read = Callable[[RowFinding], Mark | None]
"""From a finding to what is drawn upwards."""


def identified(finding: RowFinding) -> Mark | None:
    """Share of identified pictures, in percent."""
    seen = finding.identified
    return None if seen is None else Mark(100 * seen.rate, 100 * seen.low, 100 * seen.high)


def quality(finding: RowFinding) -> Mark | None:
    """Mean PSNR in dB, cut at the ceiling."""
    psnr = finding.psnr
    if psnr is None:
        return None
    ends = (psnr.mean, *(psnr.mean if end is None else end for end in (psnr.low, psnr.high)))
    return Mark(*(min(v, CEILING) for v in ends))


def dots(rows: Sequence[RowResult], read: Read) -> list[RowDot]:
    """Rows that both attackers have a result for."""
    found = []
    for row in rows:
        naive, adapted = (f and read(f) for f in (row.leakage.naive, row.leakage.adapted))
        if not naive or not adapted:
            continue
        a, accuracy = row.accuracy, None
        if a.value is not None:
            accuracy = Mark(*(100 * (a.value if end is None else end) for end in (a.value, a.low, a.high)))
        found.append(RowDot(row.family, row.label, accuracy, naive, adapted, row.defense != "none"))
    return found


def every(rows: Sequence[RowResult]) -> list[Plot]:
    """Both plots; against accuracy where it was measured, otherwise row by row."""
    naive = [f for r in rows if (f := r.leakage.naive)]
    floors = [f.null_psnr.mean for f in naive if f.null_psnr]
    chances = [100 * f.identified.chance for f in naive if f.identified]
    table = tuple(_cells(r) for r in rows)
    made = []
    for title, words, read, floor, name in (
        ("Accuracy against identification", "pictures identified, %", identified, max(chances, default=None), "chance"),
        ("Accuracy against quality", "mean PSNR, dB", quality, _mean(floors), "nearest public picture"),
    ):
        found = dots(rows, read)
        trained = [d for d in found if d.accuracy is not None]
        if len(trained) > 1:
            plot = _against_accuracy(title, words, trained, floor, name)
        elif found:
            plot = _by_row(
                title.replace("Accuracy against i", "I").replace("Accuracy against q", "Q"), words, found, floor, name
            )
        else:
            continue
        made.append(replace(plot, rows=table))
    return made


def _style(families: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a shape each; no two families share both, so no meaning hangs on colour alone."""
    n = len(SERIES)
    return {f: (SERIES[i % n][0], SERIES[(i + i // n) % n][1]) for i, f in enumerate(families)}


def _against_accuracy(title: str, words: str, found: Sequence[RowDot], floor: float | None, name: str) -> Plot:
    families = list(dict.fromkeys(d.family for d in found if d.family != UNDEFENDED))
    bare = next((d for d in found if d.family == UNDEFENDED), None)
    style = _style(families)

    def draw(axes: Axes) -> None:
        axes.set(xlabel="test accuracy, % (right is better)", ylabel=f"{words} (down is better)")
        axes.grid()
        for family in families:
            colour, shape = style[family]
            mine = [d for d in found if d.family == family]
            xs = [d.accuracy.value for d in mine if d.accuracy]
            axes.plot(xs, [d.stronger.value for d in mine], "-", color=colour, lw=1.3, zorder=2)
            for x, d in zip(xs, mine, strict=True):
                axes.plot([x, x], [d.naive.value, d.adapted.value], ":", color=colour, lw=1.3, zorder=2)
                axes.plot([x, x], [d.stronger.low, d.stronger.high], "-", color=colour, lw=0.7, alpha=0.55, zorder=1)
                assert d.accuracy is not None
                ends = [d.accuracy.low, d.accuracy.high]
                axes.plot(ends, [d.stronger.value] * 2, "-", color=colour, lw=0.7, alpha=0.55, zorder=1)
                if d.attackers:
                    axes.plot(x, d.naive.value, shape, color=colour, mfc=PAPER, ms=6, mew=1.2, zorder=3)
                axes.plot(x, d.adapted.value, shape, color=colour, ms=6, zorder=4)
            axes.plot([], [], f"{shape}-", color=colour, ms=6, label=family[:LABEL].lstrip("_") or "defence")
        if bare is not None and bare.accuracy is not None:
            axes.axvline(bare.accuracy.value, color=GRID, lw=1.2, ls="--", zorder=0)
            axes.plot(bare.accuracy.value, bare.adapted.value, "*", color=INK, ms=11, label="undefended", zorder=5)
        if floor is not None:
            axes.axhline(floor, color=INK, lw=1.1, ls=":", label=name, zorder=0)
        axes.plot([], [], "o", color=MUTED, mfc=PAPER, ms=6, mew=1.2, label="naive attacker (hollow)")

    return drawn(title, _takeaway(found, bare, words), (), 4.6, draw)


def _by_row(title: str, words: str, found: Sequence[RowDot], floor: float | None, name: str) -> Plot:
    def draw(axes: Axes) -> None:
        axes.set(xlabel=f"{words} (left is better)", ylim=(len(found) - 0.4, -0.9), yticks=[])
        axes.grid(axis="x")
        colour = SERIES[0][0]
        for y, d in enumerate(found):
            axes.plot([d.stronger.low, d.stronger.high], [y, y], "-", color=colour, lw=0.8)
            axes.plot(d.naive.value, y, "o", color=colour, mfc=PAPER, ms=5.5, mew=1.2)
            axes.plot(d.adapted.value, y, "o", color=colour, ms=5.5)
            axes.annotate(d.label[:LABEL], (0, y), (2, 7), textcoords="offset points", fontsize=8.5)
        axes.plot([], [], "o", color=colour, mfc=PAPER, ms=5.5, mew=1.2, label="naive attacker")
        axes.plot([], [], "o", color=colour, ms=5.5, label="adapted attacker")
        if floor is not None:
            axes.axvline(floor, color=INK, lw=1.1, ls=":", label=name)
        axes.set_xlim(left=0)
        axes.spines["left"].set_visible(False)

    bare = next((d for d in found if d.family == UNDEFENDED), None)
    return drawn(title, _takeaway(found, bare, words), (), 1.2 + 0.42 * len(found), draw)


def _takeaway(found: Sequence[RowDot], bare: RowDot | None, words: str) -> str:
    others = [d for d in found if d.family != UNDEFENDED]
    moved = [d for d in others if d.adapted.value > d.naive.value]
    said = "" if bare is None else f"Undefended: {bare.adapted.value:.3g} ({words}). "
    if not others:
        return said.strip()
    least = min(others, key=lambda d: d.stronger.value)
    said += f"Least under the stronger attacker: {least.stronger.value:.3g}, {least.label}. "
    return said + f"Knowing the defence helped the attacker in {len(moved)} of {len(others)} rows."


def _cells(row: RowResult) -> tuple[str, ...]:
    both = (row.leakage.naive, row.leakage.adapted)
    shares = [f"{f.identified.count} of {f.identified.n}" if f and f.identified else NONE for f in both]
    means = [figure(f.psnr.mean, 1, "dB") if f and f.psnr else NONE for f in both]
    return row.label, percent(row.accuracy.value), *shares, *means


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def render(report: Report) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    findings = [f for r in report.rows for f in (r.leakage.naive, r.leakage.adapted)]
    return page(
        "frontiers",
        "page.html.j2",
        {"percent": percent, "size": size},
        report=report,
        rows=report.rows,
        plots=every(report.rows),
        plot_columns=COLUMNS,
        has_lpips=any(f and f.lpips_mean is not None for f in findings),
        plan=yaml.safe_dump(dict(report.config), sort_keys=False, allow_unicode=True, width=100),
    )


def percent(value: object, digits: int = 1) -> str:
    """A share in percent; a dash for none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NONE
    return f"{100 * value:.{digits}f}{NBSP}%"


def size(count: object) -> str:
    """Bytes in a unit that fits."""
    if isinstance(count, bool) or not isinstance(count, int | float):
        return NONE
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.3g}{NBSP}{unit}"
        value /= 1000
    return f"{value:.3g}{NBSP}GB"
