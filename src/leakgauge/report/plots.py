"""Plots as inline SVG that takes its colours from the page, each with a take-away and its numbers as a table.

PSNR is drawn up to `CEILING` dB: above it a copy is visually perfect. matplotlib is imported by the first plot.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from leakgauge.report.rows import ReportRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CEILING, STRIPS, LABEL = 60.0, 12, 58
DOTS, CASES = 120, 240
"""Images drawn of a case, and cases drawn at all: the worst, and of the other images some at equal distances."""
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
Strip = tuple[str, list[tuple[float, bool]], list[float]]


@dataclass(frozen=True)
class Plot:
    """A drawing, the one line that it shows, and the numbers behind it under `COLUMNS`."""

    title: str
    takeaway: str
    svg: str
    rows: tuple[tuple[str, ...], ...]


def decibel(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}\u00a0dB"


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


def _strips(
    title: str, takeaway: str, rows: Iterable[ReportRow], strips: Sequence[Strip], words: Sequence[str]
) -> Plot:
    """A row a strip: values, filled or hollow so that no meaning hangs on colour, over the null baselines as a bar."""

    def draw(axes: Axes) -> None:
        top = max([20.0, *(x for _, values, _ in strips for x, _ in values)])
        end = CEILING if top > CEILING else 5 * (top // 5 + 1)
        axes.set(xlim=(0, end * 1.03), xlabel=f"PSNR in dB, right is a closer copy{'; cut at 60' * (top > CEILING)}")
        axes.grid(axis="x")
        for y, (label, values, null) in enumerate(strips):
            if null:
                ends = min(*null, end), min(max(null), end)
                axes.plot(ends, (y, y), color=_BAND, lw=8, solid_capstyle="round", zorder=1)
            for x, full in values:
                shape, size, face = (">", 7, _BLUE) if x > end else ("o", 5.5, _BLUE if full else PAPER)
                axes.plot(min(x, end), y, shape, color=_BLUE, mfc=face, ms=size, mew=1.2, zorder=3)
            short = label if len(label) <= LABEL else label[:LABEL] + "…"
            axes.annotate(short, (0, y), (2, 8), textcoords="offset points", fontsize=9)
        for face, word in zip((_BLUE, PAPER), words, strict=True):
            axes.plot([], [], "o", color=_BLUE, mfc=face, ms=5.5, mew=1.2, label=word)
        axes.plot([], [], "s", color=_BAND, ms=8, label="null baseline")
        axes.set(ylim=(len(strips) - 0.6, -0.8), yticks=[])
        axes.spines["left"].set_visible(False)

    return drawn(title, takeaway, _numbers(rows), 1.05 + 0.45 * len(strips), draw)


def _some(dots: list[tuple[float, bool]]) -> list[tuple[float, bool]]:
    """Half of `DOTS` are the first, the others lie at equal distances among the rest."""
    half = DOTS // 2
    step = (len(dots) - half) / half
    return dots if len(dots) <= DOTS else [*dots[:half], *(dots[half + int(i * step)] for i in range(half))]


def _numbers(rows: Iterable[ReportRow]) -> list[tuple[str, ...]]:
    found = []
    for row in rows:
        psnr, nulls, cost = [d.psnr for d in row.dots], row.nulls, row.finding.cost.gradient_evaluations
        numbers = map(decibel, (row.mean, max(psnr), sum(nulls) / len(nulls) if nulls else None))
        found.append((row.label, str(len(psnr)), *numbers, f"{cost / row.finding.trials:,.0f}"))
    return found


def distribution(rows: Sequence[ReportRow]) -> Plot:
    """A strip a finding, every image a dot."""
    pairs = [(d.psnr, d.null) for row in rows for d in row.dots if d.null is not None]
    above = sum(x > n for x, n in pairs)
    takeaway = f"Closer than their own best null baseline: {above} of {len(pairs)} images."
    takeaway += f" The worst {STRIPS} of {len(rows)} cases are drawn." if len(rows) > STRIPS else ""
    takeaway += f" Of a case with many images {DOTS} are drawn." if max(len(r.dots) for r in rows) > DOTS else ""
    strips = []
    for row in rows[:STRIPS]:
        worst = sorted(((d.psnr, d.identified) for d in row.dots), key=lambda dot: dot[::-1], reverse=True)
        strips.append((row.label, _some(worst), row.nulls))
    return _strips("Every image, worst case first", takeaway, rows, strips, ("identified", "not identified"))


def by_defense(rows: Sequence[ReportRow]) -> Plot:
    """A strip a defence, every finding a dot; only settings run under several defences, where there are such."""
    defenses = {row.label: row.finding.scenario.defense for row in rows}
    settings = {row.label: replace(row.finding.scenario, defense="", defended=False, broken_by="") for row in rows}
    runs = Counter(setting for setting, _ in {(settings[r.label], defenses[r.label]) for r in rows})
    compared = [r for r in rows if runs[settings[r.label]] > 1] or list(rows)
    strips: list[Strip] = []
    for defense in sorted({defenses[r.label] for r in compared}):
        mine = [r for r in compared if defenses[r.label] == defense]
        means = [(r.mean, r.mean == max(other.mean for other in mine)) for r in mine]
        strips.append(("no defence" if defense == "none" else defense, means, [n for r in mine for n in r.nulls]))
    strips.sort(key=lambda strip: max(strip[1]), reverse=True)
    parts = [f"{name} {decibel(max(values)[0])}" for name, values, _ in strips]
    takeaway = f"Best attack, mean over images: {'; '.join(parts[:5])}{'; …' * (len(parts) > 5)}."
    takeaway += f" The worst {2 * STRIPS} of {len(strips)} defences are drawn." if len(strips) > 2 * STRIPS else ""
    words = "best attack", "other attacks"
    return _strips("Quality under each defence", takeaway, compared, strips[: 2 * STRIPS], words)


def every(rows: Sequence[ReportRow]) -> list[Plot]:
    """All plots that rows with scores can fill, worst case first; none for none."""
    scored = [row for row in rows if row.dots and row.finding.psnr]
    return [distribution(scored), by_defense(scored[:CASES])] if scored else []
