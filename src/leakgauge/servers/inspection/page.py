"""The result as one HTML page that is complete in itself."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

TONES = {
    "crafted": "exposed",
    "suspicious": "partial",
    "note": "inconclusive",
    "nothing-found": "not_recovered",
    "not-judged": "inconclusive",
}
"""Levels here to the colours and icons of the audit's report."""

TITLES = {
    "crafted": "Crafted",
    "suspicious": "Suspicious",
    "note": "Below its limit",
    "nothing-found": "Nothing found",
    "not-judged": "Not judged",
}


def render(result: dict[str, Any]) -> str:
    """The page of one result of `leakgauge.servers.inspection.verdict.inspect`."""
    loaders = [PackageLoader("leakgauge", "servers/inspection"), PackageLoader("leakgauge", "report")]
    page = Environment(loader=ChoiceLoader(loaders), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters["figure"] = _figure
    script = Markup(page.get_template("script.js.j2").render())
    return page.get_template("page.html.j2").render(
        result=result,
        tones=TONES,
        titles=TITLES,
        script=script,
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _figure(value: float | None) -> str:
    """Three digits, or a dash for none."""
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}".replace(",", " ")
