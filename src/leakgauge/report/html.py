"""One self-contained page from an audit's verdict, its trials and the pictures beside them.

The page works offline from a file: styles, script, plots and pictures are inside it, and its content security policy
forbids any request. Equal input gives equal bytes. What there is none of is shown as missing.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml
from jinja2 import ChainableUndefined, ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from leakgauge.report import plots
from leakgauge.report.rows import PER_FINDING, Picture, Seen
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import Verdict

IN_ALL, GALLERIES, PAGE, CASES = 240, 120, 100, 5000
"""Pictures, cases with pictures, table rows at a time and in all: of the worst; the rest is in report.json."""
NBSP = "\u00a0"
NONE = "—"
_PNG = b"\x89PNG\r\n\x1a\n"


def _uri(png: bytes | None) -> str | None:
    """`None` also for what is no PNG."""
    return "data:image/png;base64," + base64.b64encode(png).decode() if png and png.startswith(_PNG) else None


def figure(value: object, digits: int = 2, unit: str = "") -> str:
    """A number with its unit behind a space that does not break; a dash for none."""
    number = number_of(value)
    return NONE if number is None else f"{number:,.{digits}f}" + (NBSP + unit if unit else "")


def interval(found: Any, key: str = "mean", digits: int = 2) -> str:
    """``0.88 [0.47, 1.00]``, without brackets where the interval is unknown; of a record or a typed result."""
    middle, low, high = (
        figure(found.get(k) if isinstance(found, Mapping) else getattr(found, k, None), digits)
        for k in (key, "low", "high")
    )
    return middle if NONE in (middle, low, high) else f"{middle}{NBSP}[{low},{NBSP}{high}]"


def number_of(value: object) -> float | None:
    """`None` for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def render(
    told: Mapping[str, Any], verdict: Verdict, trials: Iterable[Trial], pictures: Mapping[str, Sequence[Picture]]
) -> str:
    """The page as one string of HTML.

    Args:
        told: report.json without verdict and trials.
        trials: read once, one by one.
        pictures: trial id → its pictures; empty for an audit that stored none. Only those that are shown are read.
    """
    seen = Seen.of(verdict.findings, trials, pictures)
    rows = seen.ordered
    audited = [r for r in rows if not r.control]
    return page(
        "report",
        "template.html.j2",
        {"uri": _uri},
        report=told,
        verdict=verdict,
        rows=rows,
        audited=audited,
        count=seen.count,
        worst=max((r.worst_first[0] for r in audited if r.worst_first), key=lambda s: s.harm, default=None),
        limit=max(2, min(PER_FINDING, IN_ALL // max(1, len(rows)))),
        has_pictures=seen.kept,
        has_words=any(shown.words for row in rows for shown in row.worst_first),
        galleries=GALLERIES,
        page_rows=PAGE,
        cases=CASES,
        plot_columns=plots.COLUMNS,
        plots=plots.every([s for s in (r.series for r in audited) if s]),
        failures=list(seen.failures.values()),
        endings=seen.endings,
        tried=seen.tried,
        seeds=sorted(seen.seeds),
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
