"""What the page holds of an audit's trials, which pass by one by one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from leakgauge.observation import Tried
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.scores import Values

PER_FINDING, FAILURES = 8, 100  # images kept of a case, and kinds of failures: the most exposed, the first


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A true image and what an attack made of it, as PNG files; `slot` indexes the trial's lists of scores."""

    name: str
    slot: int
    original: bytes | None
    reconstruction: bytes | None


@dataclass(frozen=True)
class Shown:
    """One image of one trial: its scores, and its picture where that was stored."""

    trial: Trial
    slot: int
    stored: Mapping[str, Sequence[Picture]]

    @property
    def name(self) -> str:
        return self.trial.scenario.data.names[self.slot]

    @property
    def picture(self) -> Picture | None:
        """Read when it is shown."""
        return next((p for p in self.stored.get(self.trial.id, ()) if p.slot == self.slot), None)

    @property
    def words(self) -> list[tuple[str, str, str | None]]:
        """Column, true and read of a table, cell by cell; running text as a whole in one row."""
        found = self.trial.words
        if found is None or not found.true or found.read is None:
            return []
        true, read = found.true[self.slot], found.read[self.slot]
        if not found.columns:
            named = f"text; read: {found.form}" if found.form else "text"
            return [(named, " ".join(true), None if read is None else " ".join(read))]
        return [(name, true[i], None if read is None else read[i]) for i, name in enumerate(found.columns)]

    @property
    def match(self) -> float | None:
        return None if self.trial.words is None else self.trial.words.match[self.slot]

    def score(self, key: str) -> float | bool | None:
        values: Values | None = getattr(self.trial.scores, key, None)
        return values[self.slot] if values else None

    @property
    def null(self) -> float | None:
        nulls = self.trial.controls
        kinds = [null.psnr for null in (nulls.mean_image, nulls.nearest_public, nulls.other_client) if null is not None]
        return max((kind[self.slot] for kind in kinds if self.slot < len(kind)), default=None)

    @property
    def harm(self) -> tuple[bool, float, float]:
        """Identified first, then by PSNR, then by MSE: the order of "worst first"."""
        psnr, mse = self.score("psnr"), self.score("mse")
        return bool(self.score("identified")), -math.inf if psnr is None else psnr, -math.inf if mse is None else -mse


@dataclass(frozen=True)
class ImageDot:
    """One image: PSNR, whether identified, and the best of its null baselines."""

    psnr: float
    identified: bool
    null: float | None


class ReportRow:
    """A finding, and what is drawn of its trials: the most exposed images, as many as any page shows, and a dot of each
    image with a PSNR."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.worst_first: list[Shown] = []
        self.count = 0
        self.dots: list[ImageDot] = []

    def add(self, images: Sequence[Shown]) -> None:
        """Takes the images of a trial in, and lets go of all but the most exposed."""
        self.count += len(images)
        # By id where equally exposed, in whatever order trials come.
        self.worst_first = sorted([*self.worst_first, *images], key=lambda s: s.harm, reverse=True)[:PER_FINDING]
        for shown in images:
            if (psnr := shown.score("psnr")) is not None:
                self.dots.append(ImageDot(psnr, bool(shown.score("identified")), shown.null))

    @property
    def by_chance(self) -> bool:
        """Whether no more are identified than strangers are by the same reads."""
        return self.finding.level in (Level.INCONCLUSIVE, Level.NOT_RECOVERED)

    @property
    def order(self) -> tuple[bool, int, float, tuple[bool, float, float]]:
        """Greater is worse; controls are least."""
        rate = self.finding.identified.rate if self.finding.identified else 0.0
        worst = self.worst_first[0].harm if self.worst_first else (False, -math.inf, -math.inf)
        return not self.finding.control, -self.finding.level.rank, rate, worst

    @property
    def label(self) -> str:
        scenario = self.finding.scenario
        return " · ".join((scenario.model, scenario.client, scenario.defense, self.finding.attack))

    @property
    def mean(self) -> float:
        assert self.finding.psnr is not None
        return self.finding.psnr.mean

    @property
    def nulls(self) -> list[float]:
        return [d.null for d in self.dots if d.null is not None]


class Seen:
    """All cases of an audit, and how their trials ended.

    Attributes:
        kept: whether there are any pictures. Asked once: a store counts its rows each time.
        failures: the first of each kind, and how many there are.
        tried: by attack, method and how it ended: the first of them, and how many.
    """

    def __init__(
        self, findings: Sequence[Finding], trials: Iterable[Trial], pictures: Mapping[str, Sequence[Picture]]
    ) -> None:
        self.pictures, self.kept = pictures, bool(pictures)
        self.rows = {(found.scenario, found.attack, found.control): ReportRow(found) for found in findings}
        self.endings, self.seeds = Counter[str](), set[int]()
        self.failures: dict[tuple[str, ...], tuple[Trial | None, int]] = {}
        self.tried: dict[tuple[str, str, str], tuple[Tried, int]] = {}
        for trial in trials:
            self._add(trial)

    @property
    def ordered(self) -> list[ReportRow]:
        return sorted(self.rows.values(), key=lambda r: r.order, reverse=True)

    def _add(self, trial: Trial) -> None:
        s, attack = trial.scenario, trial.attack
        # With a gate's baseline, settings without a defence are judged as controls.
        rows = (self.rows.get((s.of_all_clients, attack, control)) for control in (trial.control, True))
        if (row := next(filter(None, rows), None)) is not None:
            shown = len(trial.scores.rank) if trial.scores else len(s.data.names) if self.kept else 0
            row.add([Shown(trial, slot, self.pictures) for slot in range(shown)])
        self.endings[trial.status] += 1
        self.seeds.add(trial.seed)
        for one in trial.tried:
            way = attack, one.name, one.status.value
            example, count = self.tried.get(way, (one, 0))
            self.tried[way] = example, count + 1
        if trial.scores is None:  # equal ones together: an example and how many
            key = s.model, s.client, s.defense, attack, trial.status, trial.message
            first, count = self.failures.get(key, (trial if len(self.failures) < FAILURES else None, 0))
            self.failures[key] = first, count + 1
