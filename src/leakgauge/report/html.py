"""One self-contained page from a parsed report.json and the pictures beside it.

The page works offline from a file: styles, script, plots and pictures are inside it, and its content security policy
forbids any request. Equal input gives equal bytes. What a report lacks is shown as missing and never stops the page.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import yaml
from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup

from leakgauge.report import plots
from leakgauge.report.picture import Picture

Record = Mapping[str, Any]
PER_FINDING, IN_ALL = 8, 240
NBSP, NONE = "\u00a0", "—"
LEVELS = ("exposed", "partial", "inconclusive", "not_recovered", "not_applicable")
_PNG = b"\x89PNG\r\n\x1a\n"
_NOWHERE = (False, -math.inf, -math.inf)
_PHRASES = {
    "fedsgd": "one gradient (FedSGD)",
    "fedavg": "local training (FedAvg: {})",
    "none": "no defence",
    "noise": "Gaussian noise ({})",
    "topk": "top-k ({})",
    "clip": "clipping ({})",
    "clip-examples": "clipping of each example ({})",
}


@dataclass(frozen=True)
class Shown:
    """One image of one trial: its scores, and its picture where that was stored."""

    trial: Record
    name: str
    slot: int
    picture: Picture | None

    def score(self, key: str) -> Any:
        return _at(_get(self.trial, "scores", key), self.slot)

    @property
    def null(self) -> float | None:
        """The best null baseline of this image."""
        kinds = _get(self.trial, "controls").values()
        found = [_number(_at(_get(kind or {}, "psnr"), self.slot)) for kind in kinds]
        return max((n for n in found if n is not None), default=None)

    @property
    def harm(self) -> tuple[bool, float, float]:
        """Identified first, then by PSNR, then by MSE: the order of "worst first"."""
        psnr, mse = _number(self.score("psnr")), _number(self.score("mse"))
        return self.score("identified") is True, -math.inf if psnr is None else psnr, -math.inf if mse is None else -mse


@dataclass(frozen=True)
class Row:
    """A scenario × attack: its finding, empty if there is none, and its trials."""

    scenario: Record
    attack: str
    control: bool
    finding: Record
    trials: tuple[Record, ...]
    images: tuple[Shown, ...]

    @property
    def level(self) -> str:
        return str(self.finding.get("level") or "inconclusive")

    @cached_property
    def worst_first(self) -> list[Shown]:
        return sorted(self.images, key=lambda s: s.harm, reverse=True)

    @property
    def order(self) -> tuple[Any, ...]:
        """Greater is worse; controls are least."""
        level = LEVELS.index(self.level) if self.level in LEVELS else len(LEVELS)
        rate = _number(_get(self.finding, "identified", "rate")) or 0.0
        return not self.control, -level, rate, self.worst_first[0].harm if self.images else _NOWHERE

    @property
    def label(self) -> str:
        where = [str(self.scenario.get(k) or NONE) for k in ("model", "client", "defense")]
        return " · ".join((*where, self.attack))

    def cost(self, key: str) -> float | None:
        """Mean over the trials that returned a result."""
        spent = [_number(_get(t, "cost", key)) for t in self.trials if t.get("scores")]
        known = [c for c in spent if c is not None]
        return sum(known) / len(known) if known else None

    @property
    def series(self) -> plots.Series | None:
        """What the plots draw; `None` without scores."""
        scored = [(_number(s.score("psnr")), s) for s in self.worst_first]
        dots = [plots.Dot(x, s.score("identified") is True, s.null) for x, s in scored if x is not None]
        mean, low, high = (_number(_get(self.finding, "psnr", k)) for k in ("mean", "low", "high"))
        setting = json.dumps({k: v for k, v in self.scenario.items() if k != "defense"}, sort_keys=True)
        if not dots or mean is None:
            return None
        where = self.label, setting, self.attack, str(self.scenario.get("defense"))
        return plots.Series(*where, tuple(dots), mean, low, high, self.cost("gradient_evaluations") or 0.0)


def _get(parent: Record, *path: str) -> Any:
    """What lies at the end of the path, or an empty mapping where something is null or missing."""
    found: Any = parent
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return {} if found is None else found


def _at(values: Any, slot: int) -> Any:
    return values[slot] if isinstance(values, list) and slot < len(values) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _uri(png: bytes | None) -> str | None:
    """`None` also for what is no PNG."""
    return "data:image/png;base64," + base64.b64encode(png).decode() if png and png.startswith(_PNG) else None


def figure(value: object, digits: int = 2, unit: str = "") -> str:
    """A number with its unit behind a space that does not break; a dash for none."""
    number = _number(value)
    return NONE if number is None else f"{number:,.{digits}f}" + (NBSP + unit if unit else "")


def interval(found: Any, key: str = "mean", digits: int = 2) -> str:
    """``0.88 [0.47, 1.00]``, without brackets where the interval is unknown."""
    middle, low, high = (
        figure(_get(found, k) if isinstance(found, Mapping) else None, digits) for k in (key, "low", "high")
    )
    return middle if NONE in (middle, low, high) else f"{middle}{NBSP}[{low},{NBSP}{high}]"


def _phrase(term: object) -> str:
    """A client or defence in words: ``noise(relative=0.01)`` → Gaussian noise (relative = 0.01)."""

    def one(part: str) -> str:
        named = re.fullmatch(r"([\w-]+)(?:\((.*)\))?", part.strip(), flags=re.S)
        if not named or named[1] not in _PHRASES:
            return part.strip()
        inside = re.sub(r"\s*=\s*", f"{NBSP}={NBSP}", named[2] or "")
        return _PHRASES[named[1]].format(inside).replace(" ()", "").replace(": )", ")")

    return ", then ".join(one(p) for p in str(term or NONE).split(" + "))


def _rows(report: Record, pictures: Mapping[str, Sequence[Picture]]) -> list[Row]:
    """Trials grouped by scenario and attack, each group with its finding, worst first and controls last."""

    def key(record: Record) -> tuple[str, str, bool]:
        data = {k: v for k, v in _get(record, "scenario", "data").items() if k not in ("index", "names")}
        scenario = json.dumps({**_get(record, "scenario"), "data": data}, sort_keys=True)
        return scenario, str(record.get("attack") or NONE), bool(record.get("control"))

    groups: dict[tuple[str, str, bool], list[Record]] = {key(f): [] for f in _get(report, "verdict", "findings") or []}
    for trial in report.get("trials") or []:
        groups.setdefault(key(trial), []).append(trial)
    findings = {key(f): f for f in _get(report, "verdict", "findings") or []}
    rows = []
    for k, trials in groups.items():
        shown = tuple(s for t in trials for s in _images(t, pictures.get(str(t.get("id")), [])))
        rows.append(Row(json.loads(k[0]), k[1], k[2], findings.get(k, {}), tuple(trials), shown))
    return sorted(rows, key=lambda r: r.order, reverse=True)


def _images(trial: Record, pictures: Sequence[Picture]) -> list[Shown]:
    """Every image that has a score or a picture."""
    stored, names = {p.slot: p for p in pictures}, _get(trial, "scenario", "data", "names")
    scored = max((len(v) for v in _get(trial, "scores").values() if isinstance(v, list)), default=0)
    slots = {s: stored[s].name if s in stored else _at(names, s) for s in sorted({*range(scored), *stored})}
    return [Shown(trial, str(name or f"image {s + 1}"), s, stored.get(s)) for s, name in slots.items()]


def _failures(trials: Iterable[Record]) -> list[tuple[Record, int]]:
    """Trials without a result, equal ones together: an example and how many."""
    lost: dict[str, list[Record]] = {}
    for t in trials:
        if not t.get("scores"):
            where = [_get(t, "scenario", k) for k in ("model", "client", "defense")]
            lost.setdefault(json.dumps([*where, *(t.get(k) for k in ("attack", "status", "message"))]), []).append(t)
    return [(same[0], len(same)) for same in lost.values()]


def render(report: Record, pictures: Mapping[str, Sequence[Picture]]) -> str:
    """The page as one string of HTML.

    Args:
        report: report.json as parsed.
        pictures: trial id → its pictures; empty for an audit that stored none.
    """
    page = Environment(loader=PackageLoader("leakgauge", "report"), autoescape=True, undefined=ChainableUndefined)
    page.trim_blocks = page.lstrip_blocks = True
    page.finalize = lambda value: NONE if value is None else value
    page.filters |= {"figure": figure, "interval": interval, "phrase": _phrase, "uri": _uri}
    rows, trials = _rows(report, pictures), list(report.get("trials") or [])
    audited = [r for r in rows if not r.control]
    script = Markup(page.get_template("script.js.j2").render())
    return page.get_template("template.html.j2").render(
        report=report,
        verdict=_get(report, "verdict"),
        rows=rows,
        audited=audited,
        trials=trials,
        levels=LEVELS,
        worst=max((r.worst_first[0] for r in audited if r.images), key=lambda s: s.harm, default=None),
        limit=max(2, min(PER_FINDING, IN_ALL // max(1, len(rows)))),
        has_pictures=any(pictures.values()),
        plot_columns=plots.COLUMNS,
        plots=plots.every([s for s in (r.series for r in audited) if s]),
        failures=_failures(trials),
        endings=Counter(str(t.get("status") or "no status") for t in trials),
        seeds=sorted({str(t["seed"]) for t in trials if t.get("seed") is not None}, key=lambda s: (len(s), s)),
        plan=yaml.safe_dump(report.get("config") or {}, sort_keys=False, allow_unicode=True, width=100),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
