"""The pages of an audit, from its verdict, its trials and the pictures beside them: the report, and the sheet to sign.

A page works offline from a file: styles, script, plots and pictures are inside it, and its content security policy
forbids any request. Equal input gives equal bytes. What there is none of is shown as missing.
"""

import base64
import hashlib
import math
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChainableUndefined, ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from leakgauge.observation import Tried
from leakgauge.report import plots
from leakgauge.report.plots import NBSP, NONE, figure
from leakgauge.study.database import Picture
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.decision import duration, limits_of
from leakgauge.study.judging.records import Trial, Values
from leakgauge.study.judging.results import Finding, Level
from leakgauge.study.judging.verdict import Verdict

PER_FINDING, FAILURES = 8, 100  # images kept of a case, and kinds of failures: the most exposed, the first
IN_ALL = 240  # pictures of a page, of the worst; the rest is in report.json
_PNG = b"\x89PNG\r\n\x1a\n"


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


@dataclass
class ReportRow:
    """A finding, and what is drawn of its trials: the most exposed images, as many as any page shows, and a dot of each
    image with a PSNR."""

    finding: Finding
    count: int = 0
    worst_first: list[Shown] = field(default_factory=list)
    dots: list[ImageDot] = field(default_factory=list)

    def add(self, images: Sequence[Shown]) -> None:
        """Takes the images of a trial in, and lets go of all but the most exposed."""
        self.count += len(images)
        # By id where equally exposed, in whatever order trials come.
        self.worst_first = sorted([*self.worst_first, *images], key=lambda s: s.harm, reverse=True)[:PER_FINDING]
        for shown in images:
            if (psnr := shown.score("psnr")) is not None:
                self.dots.append(ImageDot(psnr, bool(shown.score("identified")), shown.null))

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
    def nulls(self) -> list[float]:
        return [d.null for d in self.dots if d.null is not None]


class Seen:
    """All cases of an audit, and how their trials ended."""

    def __init__(
        self, findings: Sequence[Finding], trials: Iterable[Trial], pictures: Mapping[str, Sequence[Picture]]
    ) -> None:
        self.pictures, self.kept = pictures, bool(pictures)  # asked once: a store counts its rows each time
        self.rows = {(found.scenario, found.attack, found.control): ReportRow(found) for found in findings}
        self.endings, self.seeds = Counter[str](), set[int]()
        self.failures: dict[tuple[str, ...], tuple[Trial | None, int]] = {}  # the first of a kind; how many there are
        self.tried: dict[tuple[str, str, str], tuple[Tried, int]] = {}  # the same by attack, method, how it ended
        for trial in trials:
            self._add(trial)

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


def _uri(png: bytes | None) -> str | None:
    """`None` also for what is no PNG."""
    return "data:image/png;base64," + base64.b64encode(png).decode() if png and png.startswith(_PNG) else None


def interval(found: Any, key: str = "mean", digits: int = 2) -> str:
    """``0.88 [0.47, 1.00]``, without brackets where the interval is unknown; of a record or a typed result."""
    middle, low, high = (
        figure(found.get(k) if isinstance(found, Mapping) else getattr(found, k, None), digits)
        for k in (key, "low", "high")
    )
    return middle if NONE in (middle, low, high) else f"{middle}{NBSP}[{low},{NBSP}{high}]"


def render(
    told: Mapping[str, Any], verdict: Verdict, trials: Iterable[Trial], pictures: Mapping[str, Sequence[Picture]]
) -> str:
    seen = Seen(verdict.findings, trials, pictures)
    rows = sorted(seen.rows.values(), key=lambda row: row.order, reverse=True)
    audited = [r for r in rows if not r.finding.control]
    drawn = [row for row in audited if row.dots and row.finding.psnr]
    return page(
        "report",
        "template.html.j2",
        {"uri": _uri},
        report=told,
        verdict=verdict,
        rows=rows,
        audited=audited,
        seen=seen,
        worst=max((r.worst_first[0] for r in audited if r.worst_first), key=lambda s: s.harm, default=None),
        limit=max(2, min(PER_FINDING, IN_ALL // max(1, len(rows)))),
        has_words=any(shown.words for row in rows for shown in row.worst_first),
        plot_columns=plots.COLUMNS,
        plots=[plots.distribution(drawn)] if drawn else [],
        plan=yaml.safe_dump(told["config"], sort_keys=False, allow_unicode=True, width=100),
    )


def page(room: str, template: str, filters: Mapping[str, Callable[..., object]], **values: object) -> str:
    """A template of that folder of the package, in the shell that all pages share: styles, script, security policy."""
    loader = ChoiceLoader([PackageLoader("leakgauge", room), PackageLoader("leakgauge", "report")])
    shell = Environment(loader=loader, autoescape=True, undefined=ChainableUndefined)
    shell.trim_blocks = shell.lstrip_blocks = True
    shell.finalize = lambda value: NONE if value is None else value
    shell.filters |= {"figure": figure, "interval": interval, **filters}
    script = Markup(shell.get_template("script.js.j2").render())
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return shell.get_template(template).render(
        levels=[level.value for level in Level], script=script, script_digest=digest, **values
    )


HOLDS = timedelta(days=365)  # how long an answer is taken to hold at most: attacks are published meanwhile

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell"),
    *("microsoft-edge", "msedge", "brave", "brave-browser"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Commands of browsers that print without a window."""

SECONDS = 120  # after which a browser is given up
SHOWN = 4  # attacks and settings that are named; the others are counted


def sheet(told: Mapping[str, Any], verdict: Verdict, *, digest: str, by: str = "", to: str = "") -> str:
    decision = told["decision"]
    own = [f for f in verdict.findings if not f.control]
    tried = [f for f in own if f.level is not Level.NOT_APPLICABLE]
    return page(
        "report",
        "sheet.html.j2",
        {},
        report=told,
        decision=decision,
        verdict=verdict,
        allowed=limits_of(GateConfig.model_validate(told["config"]["gate"])) if told["config"].get("gate") else "",
        digest=digest,
        by=by,
        to=to,
        until=f"{datetime.fromisoformat(str(told['created_at'])) + HOLDS:%Y-%m-%d}",
        settings=_some([f"{f.scenario.client}, {f.scenario.defense}" for f in own]),
        models=_some([f.scenario.model for f in own]),
        clients=max((f.clients for f in own), default=0),
        attacks=_some([f.attack.split("(")[0] for f in tried]),
        evaluations=sum(f.cost.gradient_evaluations for f in tried),
        time=duration(sum(f.cost.seconds for f in tried) / 60),
        knew=tried[0].scenario.knowledge if tried else (),
        own=own,
        hashes={v: [k for k, other in decision["hashes"].items() if other == v] for v in decision["hashes"].values()},
    )


def _some(names: list[str]) -> list[str]:
    """Different ones in their order, the rest counted."""
    each = list(dict.fromkeys(names))
    return each if len(each) <= SHOWN else [*each[: SHOWN - 1], f"{len(each) - SHOWN + 1} more"]


def browser(environment: Mapping[str, str] = os.environ) -> str | None:
    """The command of a browser that is installed: what ``BROWSER_PATH`` says, or the first that is found."""
    names = (environment.get("BROWSER_PATH", ""), *BROWSERS)
    return next((found for name in names if name and (found := shutil.which(name))), None)


def print_pdf(html: Path, pdf: Path, command: str) -> bool:
    """Prints a page through a browser without a window; whether it did."""
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    fixed = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={pdf.absolute()}"]
    order = [command, *root, *fixed, html.absolute().as_uri()]
    try:
        subprocess.run(order, capture_output=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return pdf.is_file()
