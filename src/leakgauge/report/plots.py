"""Plots as inline SVG that takes its colours from the page, each with a take-away and its numbers as a table.

PSNR is drawn up to `CEILING` dB: above it a copy is visually perfect. matplotlib is imported by the first plot.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

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
class ImageDot:
    """One image: PSNR, whether identified, and the best of its null baselines."""

    psnr: float
    identified: bool
    null: float | None


@dataclass(frozen=True)
class Plotted:
    """One scenario × attack that has scores; `setting` is the scenario without its defence, `evaluations` a trial's."""

    label: str
    setting: Hashable
    attack: str
    defense: str
    images: tuple[ImageDot, ...]
    mean: float
    low: float | None
    high: float | None
    evaluations: float

    @property
    def null(self) -> list[float]:
        return [d.null for d in self.images if d.null is not None]

    @property
    def row(self) -> tuple[str, ...]:
        numbers = map(decibel, (self.mean, max(d.psnr for d in self.images), _mean(self.null)))
        return self.label, str(len(self.images)), *numbers, f"{self.evaluations:,.0f}"


@dataclass(frozen=True)
class Plot:
    """A drawing, the one line that it shows, and the numbers behind it under `COLUMNS`."""

    title: str
    takeaway: str
    svg: str
    rows: tuple[tuple[str, ...], ...]


def decibel(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}\u00a0dB"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


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


def _psnr_axis(axes: Axes, values: Iterable[float], along: str) -> float:
    """Sets the PSNR axis and answers its end."""
    top = max([20.0, *values])
    end = CEILING if top > CEILING else 5 * (top // 5 + 1)
    words = f"PSNR in dB{', right is a closer copy' * (along == 'x')}{'; cut at 60' * (top > CEILING)}"
    axes.set(**{f"{along}lim": (0, end * 1.03), f"{along}label": words})
    axes.grid(axis="x" if along == "x" else "y")
    return end


def _strips(
    title: str, takeaway: str, series: Iterable[Plotted], strips: Sequence[Strip], words: Sequence[str]
) -> Plot:
    """A row a strip: values, filled or hollow so that no meaning hangs on colour, over the null baselines as a bar."""

    def draw(axes: Axes) -> None:
        end = _psnr_axis(axes, [x for _, values, _ in strips for x, _ in values], "x")
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

    return drawn(title, takeaway, [s.row for s in series], 1.05 + 0.45 * len(strips), draw)


def _some(images: Sequence[ImageDot]) -> Sequence[ImageDot]:
    """Half of `DOTS` are the first, the others lie at equal distances among the rest."""
    if len(images) <= DOTS:
        return images
    half = DOTS // 2
    step = (len(images) - half) / half
    return [*images[:half], *(images[half + int(i * step)] for i in range(half))]


def distribution(series: Sequence[Plotted]) -> Plot:
    """A strip a finding, every image a dot."""
    pairs = [(d.psnr, d.null) for s in series for d in s.images if d.null is not None]
    above = sum(x > n for x, n in pairs)
    takeaway = f"{above} of {len(pairs)} images came back closer than their own best null baseline."
    takeaway += f" The worst {STRIPS} of {len(series)} cases are drawn." if len(series) > STRIPS else ""
    takeaway += f" Of a case with many images {DOTS} are drawn." if max(len(s.images) for s in series) > DOTS else ""
    strips = [(s.label, [(d.psnr, d.identified) for d in _some(s.images)], s.null) for s in series[:STRIPS]]
    return _strips("Every image, worst case first", takeaway, series, strips, ("identified", "not identified"))


def by_defense(series: Sequence[Plotted]) -> Plot:
    """A strip a defence, every finding a dot; only settings run under several defences, where there are such."""
    runs = Counter(setting for setting, _ in {(s.setting, s.defense) for s in series})
    compared = [s for s in series if runs[s.setting] > 1] or list(series)
    strips: list[Strip] = []
    for defense in sorted({s.defense for s in compared}):
        mine = [s for s in compared if s.defense == defense]
        means = [(s.mean, s.mean == max(t.mean for t in mine)) for s in mine]
        strips.append(("no defence" if defense == "none" else defense, means, [n for s in mine for n in s.null]))
    strips.sort(key=lambda strip: max(strip[1]), reverse=True)
    parts = [f"{name} {decibel(max(values)[0])}" for name, values, _ in strips]
    takeaway = f"Best attack, mean over images: {'; '.join(parts[:5])}{'; …' * (len(parts) > 5)}."
    takeaway += f" The worst {2 * STRIPS} of {len(strips)} defences are drawn." if len(strips) > 2 * STRIPS else ""
    words = "best attack", "other attacks"
    return _strips("Quality under each defence", takeaway, compared, strips[: 2 * STRIPS], words)


def against_cost(series: Sequence[Plotted]) -> Plot:
    """Mean PSNR with its interval against gradient evaluations a trial; a colour and a shape an attack."""
    costs = [max(1.0, s.evaluations) for s in series]

    def draw(axes: Axes) -> None:
        end = _psnr_axis(axes, [s.mean for s in series], "y")
        decades = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
        axes.set(xscale="log", xlim=(10 ** decades[0] * 0.6, 10 ** decades[1] * 1.6))
        axes.set_xlabel("gradient evaluations a trial (0 is drawn at 1)")
        axes.xaxis.set_major_formatter("{x:,g}")
        for i, attack in enumerate(sorted({s.attack for s in series})):
            colour, shape = SERIES[i % len(SERIES)]
            mine = [(x, s) for x, s in zip(costs, series, strict=True) if s.attack == attack]
            for x, s in mine:
                ends = [min(s.mean if v is None else v, end) for v in (s.low, s.high)]
                axes.plot([x, x], ends, color=colour, lw=1.3)
            points = [x for x, _ in mine], [min(s.mean, end) for _, s in mine]
            axes.plot(*points, shape, color=colour, ms=6, label=attack[:LABEL].lstrip("_") or "attack")

    best = max(series, key=lambda s: (s.mean, -s.evaluations, s.label))
    takeaway = f"{best.attack} went furthest: {decibel(best.mean)} for {best.evaluations:,.0f} gradients a trial."
    return drawn("Quality against cost", takeaway, [s.row for s in series], 3.2, draw)


def every(series: Sequence[Plotted]) -> list[Plot]:
    """All plots that these series can fill, worst case first; none for none."""
    if not series:
        return []
    return [distribution(series), by_defense(series[:CASES]), against_cost(series[:CASES])]
