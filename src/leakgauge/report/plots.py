"""Plots as inline SVG that takes its colours from the page, each with a take-away and its numbers as a table.

PSNR is drawn up to `CEILING` dB: above it a copy is visually perfect. matplotlib is imported by the first plot.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leakgauge.report.html import ImageDot, ReportRow

CEILING, STRIPS, LABEL = 60.0, 12, 58
DOTS = 120  # images drawn of a case: the worst, and of the others some at equal distances
COLUMNS = ("Scenario and attack", "Images", "Mean PSNR", "Worst image", "Mean null", "Gradients a trial")
SERIES = tuple((f"#0{i}0{i}f{i}", shape) for i, shape in enumerate("os^Dvp"))
_BLUE, INK, MUTED, GRID, _BAND, PAPER = SERIES[0][0], "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "line", _BAND: "band", PAPER: "card"}
_SETTINGS: dict[Any, Any] = (
    {"svg.fonttype": "none", "svg.hashsalt": "leakgauge", "text.parse_math": False, "font.size": 9.5}
    | dict.fromkeys(("text.color", "axes.labelcolor"), INK)
    | dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), MUTED)
    | dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), GRID)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False)
    | {"grid.linewidth": 0.6, "axes.axisbelow": True}
)
Draw = Callable[["Axes"], None]


@dataclass(frozen=True)
class Plot:
    """A drawing, the one line that it shows, and the numbers behind it under `COLUMNS`."""

    title: str
    takeaway: str
    svg: str
    rows: tuple[tuple[str, ...], ...]


NBSP = "\u00a0"
NONE = "—"


def figure(value: object, digits: int = 2, unit: str = "") -> str:
    """A number with its unit behind a space that does not break; a dash for none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return NONE
    return f"{value:,.{digits}f}" + (NBSP + unit if unit else "")


def drawn(title: str, takeaway: str, rows: Iterable[tuple[str, ...]], height: float, draw: Draw) -> Plot:
    """Draws in sentinel colours, then hands colours and fonts over to the page and makes every id its own."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer, name = io.StringIO(), re.sub(r"\W+", "-", title.lower())
    with warnings.catch_warnings(), matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS}):
        # A name too long, or in a script that no font here has, is still drawn.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(4.5, height), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        columns = max(1, 3 - max(map(len, axes.get_legend_handles_labels()[1])) // 18)
        figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handletextpad=0.4)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"px '[^;\"]*", "px var(--sans)", svg)
    for colour, variable in (_VARIABLES | {c: f"series-{i}" for i, (c, _) in enumerate(SERIES)}).items():
        svg = svg.replace(colour, f"var(--{variable})")
    box = "".join(re.findall(r'viewBox="[^"]*"', svg)[:1])
    head = f'<svg class="plot" {box} role="img" aria-labelledby="{name}-title {name}-desc">'
    head += f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(takeaway)}</desc>'
    return Plot(title, takeaway, head + svg[svg.index(">") + 1 :], tuple(rows))


def distribution(rows: "Sequence[ReportRow]") -> Plot:
    """A strip a finding, every image a dot over the null baselines as a bar; dots are filled where they are identified,
    so that no meaning hangs on colour."""
    pairs = [(d.psnr, d.null) for row in rows for d in row.dots if d.null is not None]
    above = sum(x > n for x, n in pairs)
    takeaway = f"Closer than their own best null baseline: {above} of {len(pairs)} images."
    takeaway += f" The worst {STRIPS} of {len(rows)} cases are drawn." if len(rows) > STRIPS else ""
    takeaway += f" Of a case with many images {DOTS} are drawn." if max(len(r.dots) for r in rows) > DOTS else ""

    def draw(axes: "Axes") -> None:
        shown = rows[:STRIPS]
        top = max([20.0, *(d.psnr for row in shown for d in row.dots)])
        end = CEILING if top > CEILING else 5 * (top // 5 + 1)
        axes.set(xlim=(0, end * 1.03), xlabel=f"PSNR in dB, right is a closer copy{'; cut at 60' * (top > CEILING)}")
        axes.grid(axis="x")
        for y, row in enumerate(shown):
            if row.nulls:
                ends = min(*row.nulls, end), min(max(row.nulls), end)
                axes.plot(ends, (y, y), color=_BAND, lw=8, solid_capstyle="round", zorder=1)
            for d in _some(sorted(row.dots, key=lambda dot: (dot.identified, dot.psnr), reverse=True)):
                shape, size, face = (">", 7, _BLUE) if d.psnr > end else ("o", 5.5, _BLUE if d.identified else PAPER)
                axes.plot(min(d.psnr, end), y, shape, color=_BLUE, mfc=face, ms=size, mew=1.2, zorder=3)
            short = row.label if len(row.label) <= LABEL else row.label[:LABEL] + "…"
            axes.annotate(short, (0, y), (2, 8), textcoords="offset points", fontsize=9)
        for face, word in ((_BLUE, "identified"), (PAPER, "not identified")):
            axes.plot([], [], "o", color=_BLUE, mfc=face, ms=5.5, mew=1.2, label=word)
        axes.plot([], [], "s", color=_BAND, ms=8, label="null baseline")
        axes.set(ylim=(len(shown) - 0.6, -0.8), yticks=[])
        axes.spines["left"].set_visible(False)

    height = 1.05 + 0.45 * min(len(rows), STRIPS)
    return drawn("Every image, worst case first", takeaway, map(_numbers, rows), height, draw)


def _some(dots: "list[ImageDot]") -> "list[ImageDot]":
    """Half of `DOTS` are the first, the others lie at equal distances among the rest."""
    half = DOTS // 2
    step = (len(dots) - half) / half
    return dots if len(dots) <= DOTS else [*dots[:half], *(dots[half + int(i * step)] for i in range(half))]


def _numbers(row: "ReportRow") -> tuple[str, ...]:
    psnr, nulls, cost = [d.psnr for d in row.dots], row.nulls, row.finding.cost.gradient_evaluations
    decibels = (row.finding.psnr and row.finding.psnr.mean, max(psnr), sum(nulls) / len(nulls) if nulls else None)
    shown = (figure(value, 1, "dB") for value in decibels)
    return row.label, str(len(psnr)), *shown, f"{cost / row.finding.trials:,.0f}"
