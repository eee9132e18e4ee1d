"""One self-contained page from a frontier's report.json, in the style of the audit's."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

import yaml
from jinja2 import ChainableUndefined, ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from leakgauge.frontier import drawing
from leakgauge.report.html import LEVELS, NBSP, NONE, figure, interval


def render(report: Mapping[str, Any]) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    loader = ChoiceLoader([PackageLoader("leakgauge", "frontier"), PackageLoader("leakgauge", "report")])
    page = Environment(loader=loader, autoescape=True, undefined=ChainableUndefined)
    page.trim_blocks = page.lstrip_blocks = True
    page.finalize = lambda value: NONE if value is None else value
    page.filters |= {"figure": figure, "interval": interval, "percent": percent, "size": size}
    script = Markup(page.get_template("script.js.j2").render())
    return page.get_template("page.html.j2").render(
        report=report,
        rows=report["rows"],
        levels=LEVELS,
        plots=drawing.every(report["rows"]),
        plot_columns=drawing.COLUMNS,
        has_lpips=any(f and f.get("lpips_mean") is not None for r in report["rows"] for f in r["leakage"].values()),
        plan=yaml.safe_dump(report["config"], sort_keys=False, allow_unicode=True, width=100),
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
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
