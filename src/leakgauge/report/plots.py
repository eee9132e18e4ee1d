"""Plots as inline SVG that takes its colours from the page, each with a take-away and its numbers as a table.

PSNR is drawn up to `CEILING` dB: above it a copy is visually perfect. matplotlib is imported by the first plot.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CEILING, STRIPS, LABEL = 60.0, 12, 58
COLUMNS = ("Scenario and attack", "Images", "Mean PSNR", "Worst image", "Mean null", "Gradients a trial")
_SERIES = tuple((f"#0{i}0{i}f{i}", shape) for i, shape in enumerate("os^Dvp"))
_BLUE, _INK, _MUTED, _GRID, _BAND, _PAPER = _SERIES[0][0], "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {_INK: "ink", _MUTED: "muted", _GRID: "line", _BAND: "band", _PAPER: "card"}
_SETTINGS: dict[Any, Any] = (
    {"svg.fonttype": "none", "svg.hashsalt": "leakgauge", "text.parse_math": False, "font.size": 9.5}
    | dict.fromkeys(("text.color", "axes.labelcolor"), _INK)
    | dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), _MUTED)
    | dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), _GRID)
    | dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False)
    | {"grid.linewidth": 0.6, "axes.axisbelow": True}
)


@dataclass(frozen=True)
class Dot:
    """One image: PSNR, whether identified, and the best of its null baselines."""

    psnr: float
    identified: bool
    null: float | None


@dataclass(frozen=True)
class Series:
    """One scenario × attack that has scores; `setting` is the scenario without its defence, `evaluations` a trial's."""

    label: str
    setting: str
    attack: str
    defense: str
    images: tuple[Dot, ...]
    mean: float
    low: float | None
    high: float | None
    evaluations: float

    @property
    def null(self) -> list[float]:
        return [d.null for d in self.images if d.null is not None]

    @property
    def row(self) -> tuple[str, ...]:
        worst = max((d.psnr for d in self.images), default=None)
        numbers = map(decibel, (self.mean, worst, _mean(self.null)))
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


def _short(label: str) -> str:
    return label if len(label) < LABEL else label[: LABEL - 1] + "…"


def strength(defense: str) -> tuple[str, float] | None:
    """Family and strength: ``clip(norm=1) + noise(sigma=.1)`` → ``clip(norm=1) + noise(sigma=x)`` and 0.1."""
    found = list(re.finditer(r"=\s*((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?=\s*[,)])", defense))
    if not found or float(found[-1][1]) <= 0:
        return None
    return defense[: found[-1].start(1)] + "x" + defense[found[-1].end(1) :], float(found[-1][1])


def _plot(
    name: str, title: str, takeaway: str, series: Iterable[Series], height: float, draw: Callable[[Axes], None]
) -> Plot:
    """Draws in sentinel colours, then hands colours and fonts over to the page and makes every id its own."""
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_SETTINGS}):
        figure = Figure(figsize=(4.5, height), layout="constrained")
        axes = figure.add_subplot()
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        draw(axes)
        columns = 3 if max(map(len, axes.get_legend_handles_labels()[1])) < 19 else 2
        figure.legend(loc="outside lower left", ncols=columns, fontsize=9, handletextpad=0.4, columnspacing=1.2)
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    svg = re.sub(r"px '[^;\"]*", "px var(--sans)", svg)
    for colour, variable in (_VARIABLES | {c: f"series-{i}" for i, (c, _) in enumerate(_SERIES)}).items():
        svg = svg.replace(colour, f"var(--{variable})")
    box = "".join(re.findall(r'viewBox="[^"]*"', svg)[:1])
    head = f'<svg class="plot" {box} role="img" aria-labelledby="{name}-title {name}-desc">'
    said = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(takeaway)}</desc>'
    return Plot(title, takeaway, head + said + svg[svg.index(">") + 1 :], tuple(s.row for s in series))


def _psnr_axis(axes: Axes, values: Iterable[float], along: str) -> float:
    """Sets the PSNR axis and answers its end."""
    top = max([20.0, *values])
    end = CEILING if top > CEILING else 5 * (top // 5 + 1)
    words = (
        "PSNR in dB" + (", right is a closer copy" if along == "x" else "") + ("; cut at 60" if top > CEILING else "")
    )
    axes.set(**{f"{along}lim": (0, end * 1.03), f"{along}label": words})
    axes.grid(axis="x" if along == "x" else "y")
    return end


def _strips(
    axes: Axes, strips: Mapping[str, tuple[list[tuple[float, bool]], list[float]]], words: Sequence[str]
) -> None:
    """A row a strip: values, filled or hollow so that no meaning hangs on colour, over the null baselines as a bar."""
    end = _psnr_axis(axes, [x for values, _ in strips.values() for x, _ in values], "x")
    for y, (label, (values, null)) in enumerate(strips.items()):
        if null:
            ends = min(*null, end), min(max(null), end)
            axes.plot(ends, (y, y), color=_BAND, lw=8, solid_capstyle="round", zorder=1)
        for x, full in values:
            shape, size, face = (">", 7, _BLUE) if x > end else ("o", 5.5, _BLUE if full else _PAPER)
            axes.plot(min(x, end), y, shape, color=_BLUE, mfc=face, ms=size, mew=1.2, zorder=3)
        axes.annotate(_short(label), (0, y), (2, 8), textcoords="offset points", fontsize=9)
    for face, word in zip((_BLUE, _PAPER), words, strict=True):
        axes.plot([], [], "o", color=_BLUE, mfc=face, ms=5.5, mew=1.2, label=word)
    axes.plot([], [], "s", color=_BAND, ms=8, label="null baseline")
    axes.set(ylim=(len(strips) - 0.6, -0.8), yticks=[])
    axes.spines["left"].set_visible(False)


def distribution(series: Sequence[Series]) -> Plot:
    """A strip a finding, every image a dot."""
    pairs = [(d.psnr, d.null) for s in series for d in s.images if d.null is not None]
    above = sum(x > n for x, n in pairs)
    takeaway = f"{above} of {len(pairs)} images came back closer than their own best null baseline."
    takeaway += f" The worst {STRIPS} of {len(series)} cases are drawn." if len(series) > STRIPS else ""
    strips = {s.label: ([(d.psnr, d.identified) for d in s.images], s.null) for s in series[:STRIPS]}
    words = ("identified", "not identified")
    height = 1.05 + 0.44 * len(strips)
    return _plot(
        "images", "Every image, worst case first", takeaway, series, height, lambda a: _strips(a, strips, words)
    )


def by_defense(series: Sequence[Series]) -> Plot:
    """A strip a defence, every finding a dot; only settings run under several defences, where there are such."""
    defenses: dict[str, set[str]] = {}
    for s in series:
        defenses.setdefault(s.setting, set()).add(s.defense)
    compared = [s for s in series if len(defenses[s.setting]) > 1] or list(series)
    best = {d: max(s.mean for s in compared if s.defense == d) for d in sorted({s.defense for s in compared})}
    strips = {}
    for d in sorted(best, key=lambda d: -best[d]):
        mine = [s for s in compared if s.defense == d]
        name = "no defence" if d == "none" else d
        strips[name] = ([(s.mean, s.mean == best[d]) for s in mine], [n for s in mine for n in s.null])
    parts = [f"{name} {decibel(max(values)[0])}" for name, (values, _) in strips.items()]
    more = [f"and {len(parts) - 4} more"] if len(parts) > 4 else []
    takeaway = f"Best attack, mean over images: {'; '.join(parts[:4] + more)}."
    words, height = ("best attack", "other attacks"), 1.05 + 0.46 * len(strips)
    return _plot(
        "defenses", "Quality under each defence", takeaway, compared, height, lambda a: _strips(a, strips, words)
    )


def against_strength(series: Sequence[Series]) -> list[Plot]:
    """A plot for each family of defences that comes in two strengths or more."""
    families: dict[str, list[tuple[float, Series]]] = {}
    for s in series:
        if parsed := strength(s.defense):
            families.setdefault(parsed[0], []).append((parsed[1], s))
    several = {name: found for name, found in sorted(families.items()) if len({x for x, _ in found}) > 1}
    return [_family(f"strength-{i}", name, several[name], series) for i, name in enumerate(several)]


def _family(name: str, family: str, found: list[tuple[float, Series]], series: Sequence[Series]) -> Plot:
    """Every finding a dot, the best attack a line, beside the same settings without a defence and the null baseline."""
    found = sorted(found, key=lambda p: p[0])
    best = {x: max(s.mean for y, s in found if y == x) for x, _ in found}
    settings = {s.setting for _, s in found}
    bare = max((s.mean for s in series if s.defense == "none" and s.setting in settings), default=None)
    null = _mean([n for _, s in found for n in s.null])

    def draw(axes: Axes) -> None:
        end = _psnr_axis(axes, [*best.values(), bare or 0.0], "y")
        xs, means = [x for x, _ in found], [min(s.mean, end) for _, s in found]
        axes.set(xscale="log", xlabel=f"x in {family}", xlim=(min(xs) / 1.5, max(xs) * 1.5))
        axes.set_xticks(list(best), [f"{x:g}" for x in best])
        axes.set_xticks([], minor=True)
        axes.plot(xs, means, "o", color=_MUTED, ms=4.5, label="one attack, one setting")
        axes.plot(xs, [min(best[x], end) for x in xs], "o-", color=_BLUE, ms=6, lw=1.8, label="best attack")
        for value, style, words in ((bare, "--", "best attack, no defence"), (null, ":", "null baseline")):
            if value is not None:
                axes.axhline(min(value, end), color=_INK, lw=1.2, ls=style, label=words)

    (first, a), *_, (last, b) = best.items()
    takeaway = f"From x = {first:g} to {last:g}, the best attack’s mean went from {decibel(a)} to {decibel(b)}."
    takeaway += f" Without a defence it was {decibel(bare)}." if bare is not None else ""
    takeaway += f" Nothing recovered looks like {decibel(null)}." if null is not None else ""
    return _plot(name, f"Quality against strength of {family}", takeaway, [s for _, s in found], 3.2, draw)


def against_cost(series: Sequence[Series]) -> Plot:
    """Mean PSNR with its interval against gradient evaluations a trial; a colour and a shape an attack."""
    costs = [max(1.0, s.evaluations) for s in series]

    def draw(axes: Axes) -> None:
        end = _psnr_axis(axes, [s.mean for s in series], "y")
        decades = math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs)))
        axes.set(xscale="log", xlim=(10 ** decades[0] * 0.6, 10 ** decades[1] * 1.6))
        axes.set_xlabel("gradient evaluations a trial (0 is drawn at 1)")
        axes.xaxis.set_major_formatter("{x:,g}")
        for i, attack in enumerate(sorted({s.attack for s in series})):
            colour, shape = _SERIES[i % len(_SERIES)]
            mine = [(x, s) for x, s in zip(costs, series, strict=True) if s.attack == attack]
            for x, s in mine:
                ends = [min(s.mean if v is None else v, end) for v in (s.low, s.high)]
                axes.plot([x, x], ends, color=colour, lw=1.3)
            points = [x for x, _ in mine], [min(s.mean, end) for _, s in mine]
            axes.plot(*points, shape, color=colour, ms=6, label=_short(attack))

    best = max(series, key=lambda s: (s.mean, -s.evaluations, s.label))
    takeaway = (
        f"{best.attack} went furthest: {decibel(best.mean)} for {best.evaluations:,.0f} gradient evaluations a trial."
    )
    return _plot("cost", "Quality against cost", takeaway, series, 3.2, draw)


def every(series: Sequence[Series]) -> list[Plot]:
    """All plots that these series can fill; none for none."""
    if not series:
        return []
    return [distribution(series), *against_strength(series), by_defense(series), against_cost(series)]
