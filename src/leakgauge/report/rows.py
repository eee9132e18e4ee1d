"""What the page holds of an audit's trials, which pass by one by one."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakgauge.report import plots

Record = Mapping[str, Any]
PER_FINDING, FAILURES = 8, 100
"""Images kept of a case, and kinds of failures: the most exposed, the first."""
NONE = "—"
OF_ONE_CLIENT = ("index", "names", "round", "examples")
"""What a scenario says of one client's data."""
LEVELS = ("exposed", "partial", "inconclusive", "not_recovered", "not_applicable")
_NOWHERE = (False, -math.inf, -math.inf)


@dataclass(frozen=True)
class Shown:
    """One image of one trial: its scores, and its picture where that was stored."""

    trial: Record
    name: str
    slot: int
    stored: Mapping[str, Sequence[Picture]]

    @property
    def picture(self) -> Picture | None:
        """Read when it is shown."""
        kept = self.stored.get(str(self.trial.get("id")), ())
        return next((p for p in kept if p.slot == self.slot), None)

    @property
    def words(self) -> list[tuple[str, str, str | None]]:
        """Column, true and read of a table, cell by cell; running text as a whole in one row."""
        found = get(self.trial, "words")
        true, read = entry(found.get("true"), self.slot), entry(found.get("read"), self.slot)
        if not true:
            return []
        columns = found.get("columns") or []
        if not columns:
            form = found.get("form")
            named = f"text; read: {form}" if form else "text"
            return [(named, " ".join(true), None if read is None else " ".join(read))]
        return [(name, true[i], None if read is None else read[i]) for i, name in enumerate(columns)]

    @property
    def match(self) -> float | None:
        """Share of the words that were read."""
        return number_of(entry(get(self.trial, "words").get("match"), self.slot))

    def score(self, key: str) -> Any:
        return entry(get(self.trial, "scores", key), self.slot)

    @property
    def null(self) -> float | None:
        """The best null baseline of this image."""
        kinds = get(self.trial, "controls").values()
        found = [number_of(entry(get(kind or {}, "psnr"), self.slot)) for kind in kinds]
        return max((n for n in found if n is not None), default=None)

    @property
    def harm(self) -> tuple[bool, float, float]:
        """Identified first, then by PSNR, then by MSE: the order of "worst first"."""
        psnr, mse = number_of(self.score("psnr")), number_of(self.score("mse"))
        return self.score("identified") is True, -math.inf if psnr is None else psnr, -math.inf if mse is None else -mse


@dataclass
class ReportRow:
    """A scenario × attack: its finding, empty if there is none, and what is drawn of its trials.

    Attributes:
        worst_first: the most exposed images, as many as any page shows.
        count: of all images.
        dots: of all images with a PSNR, as `plots` draw them.
    """

    scenario: Record
    attack: str
    control: bool
    finding: Record
    worst_first: list[Shown] = field(default_factory=list)
    count: int = 0
    dots: list[plots.ImageDot] = field(default_factory=list)
    _spent: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, trial: Record, images: Sequence[Shown]) -> None:
        """Takes a trial in, and lets go of all but its most exposed images."""
        self.count += len(images)
        # By id where equally exposed, in whatever order trials come.
        self.worst_first = sorted([*self.worst_first, *images], key=lambda s: s.harm, reverse=True)[:PER_FINDING]
        for shown in images:
            if (psnr := number_of(shown.score("psnr"))) is not None:
                self.dots.append(plots.ImageDot(psnr, shown.score("identified") is True, shown.null))
        for key in ("gradient_evaluations", "seconds") if trial.get("scores") else ():
            if (spent := number_of(get(trial, "cost", key))) is not None:
                total, count = self._spent.get(key, (0.0, 0))
                self._spent[key] = total + spent, count + 1

    @property
    def level(self) -> str:
        return str(self.finding.get("level") or "inconclusive")

    @property
    def by_chance(self) -> bool:
        """Whether no more are identified than strangers are by the same reads."""
        return self.level in ("inconclusive", "not_recovered")

    @property
    def order(self) -> tuple[Any, ...]:
        """Greater is worse; controls are least."""
        level = LEVELS.index(self.level) if self.level in LEVELS else len(LEVELS)
        rate = number_of(get(self.finding, "identified", "rate")) or 0.0
        return not self.control, -level, rate, self.worst_first[0].harm if self.worst_first else _NOWHERE

    @property
    def label(self) -> str:
        where = [str(self.scenario.get(k) or NONE) for k in ("model", "client", "defense")]
        return " · ".join((*where, self.attack))

    def cost(self, key: str) -> float | None:
        """Mean over the trials that returned a result."""
        total, count = self._spent.get(key, (0.0, 0))
        return total / count if count else None

    @property
    def series(self) -> plots.Plotted | None:
        """What the plots draw; `None` without scores."""
        mean, low, high = (number_of(get(self.finding, "psnr", k)) for k in ("mean", "low", "high"))
        setting = json.dumps({k: v for k, v in self.scenario.items() if k != "defense"}, sort_keys=True)
        if not self.dots or mean is None:
            return None
        where = self.label, setting, self.attack, str(self.scenario.get("defense"))
        dots = tuple(sorted(self.dots, key=lambda d: (d.identified, d.psnr), reverse=True))
        return plots.Plotted(*where, dots, mean, low, high, self.cost("gradient_evaluations") or 0.0)


@dataclass
class Seen:
    """All cases of an audit, and how their trials ended."""

    pictures: Mapping[str, Sequence[Picture]]
    rows: dict[tuple[str, str, bool], ReportRow]
    kept: bool
    """Whether there are any pictures. Asked once: a store counts its rows each time."""
    count: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    seeds: set[str] = field(default_factory=set)
    failures: dict[str, tuple[Record, int]] = field(default_factory=dict)
    tried: dict[tuple[str, str, str], tuple[Record, int]] = field(default_factory=dict)
    """By attack, method and how it ended: the first of them, and how many."""

    @staticmethod
    def of(report: Record, pictures: Mapping[str, Sequence[Picture]]) -> Seen:
        page = Seen(pictures, {}, kept=bool(pictures))
        for finding in get(report, "verdict", "findings") or []:
            page._row(finding).finding = finding
        for trial in report.get("trials") or []:
            page._add(trial)
        return page

    @property
    def ordered(self) -> list[ReportRow]:
        """Worst first and controls last."""
        return sorted(self.rows.values(), key=lambda r: r.order, reverse=True)

    def _row(self, record: Record) -> ReportRow:
        """By scenario and attack."""
        data = {k: v for k, v in get(record, "scenario", "data").items() if k not in OF_ONE_CLIENT}
        scenario = json.dumps({**get(record, "scenario"), "data": data}, sort_keys=True)
        key = scenario, str(record.get("attack") or NONE), bool(record.get("control"))
        if key not in self.rows:
            self.rows[key] = ReportRow(json.loads(scenario), *key[1:], {})
        return self.rows[key]

    def _add(self, trial: Record) -> None:
        self.count += 1
        self._row(trial).add(trial, _images(trial, self.pictures, self.kept))
        self.endings[str(trial.get("status") or "no status")] += 1
        if trial.get("seed") is not None:
            self.seeds.add(str(trial["seed"]))
        for one in trial.get("tried") or []:
            way = str(trial.get("attack") or NONE), str(one.get("name")), str(one.get("status"))
            example, count = self.tried.get(way, (one, 0))
            self.tried[way] = example, count + 1
        if not trial.get("scores"):  # equal ones together: an example and how many
            where = [get(trial, "scenario", k) for k in ("model", "client", "defense")]
            key = json.dumps([*where, *(trial.get(k) for k in ("attack", "status", "message"))])
            first, count = self.failures.get(key, (trial if len(self.failures) < FAILURES else {}, 0))
            self.failures[key] = first, count + 1


def _images(trial: Record, stored: Mapping[str, Sequence[Picture]], kept: bool) -> list[Shown]:
    """Every image that has a score, or a picture where the trial has none."""
    names = get(trial, "scenario", "data", "names")
    scored = max((len(v) for v in get(trial, "scores").values() if isinstance(v, list)), default=0)
    slots = range(max(scored, len(names) if kept and isinstance(names, list) else 0))
    return [Shown(trial, str(entry(names, s) or f"image {s + 1}"), s, stored) for s in slots]


def get(parent: Record, *path: str) -> Any:
    """What lies at the end of the path, or an empty mapping where something is null or missing."""
    found: Any = parent
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return {} if found is None else found


def entry(values: Any, slot: int) -> Any:
    return values[slot] if isinstance(values, list) and slot < len(values) else None


def number_of(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A true image and what an attack made of it, as PNG files; `slot` indexes the trial's lists of scores."""

    name: str
    slot: int
    original: bytes | None
    reconstruction: bytes | None
