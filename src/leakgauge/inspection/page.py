"""The result of a check as a page and on the terminal."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

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
    """The page of one result of `leakgauge.inspection.verdict.inspect`."""
    loaders = [PackageLoader("leakgauge", "inspection"), PackageLoader("leakgauge", "report")]
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


STYLES = {"crafted": "bold red", "suspicious": "yellow", "note": ""}
WHERE = 2
"""Names of tensors that a row of the table shows."""


def show(console: Console, result: dict[str, Any]) -> None:
    """Prints verdict, findings, what was skipped and what was not judged."""
    console.print(Text(f"{result['model']}: {result['level'].replace('-', ' ')}", style="bold"))
    for sentence in result["headline"]:
        console.print(Text(sentence))
    console.print()
    console.print(_findings(result["findings"]))
    for f in result["findings"]:
        if f["score"] >= 1:
            console.print(Text(f"{f['rule']}: ", style=STYLES[f["severity"]]) + Text(f["meaning"], style=""))
    if result["skipped"]:
        console.print(_skipped(result["skipped"]))
    _unjudged(console, result["unjudged"])
    if not result["limits"]["models"]:
        console.print(Text("Limits are provisional: not measured on honest models."))
    console.print(f"sha256:{result['fingerprint']}", soft_wrap=True, highlight=False)


def _findings(findings: list[dict[str, Any]]) -> Table:
    table = Table(caption="score = measured / limit; alarm from 1 on, crafted from 3 on", caption_justify="left")
    table.add_column("rule", overflow="fold", max_width=20)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("evidence", overflow="fold", ratio=1)
    for f in findings:
        evidence = f["evidence"]
        if f["score"] >= 1 and len(f["where"]) > 1:
            more = len(f["where"]) - WHERE - 1
            evidence += " Also: " + ", ".join(f["where"][1 : WHERE + 1]) + (f" and {more} more." if more > 0 else ".")
        score = "no limit" if f["limit"] is None else _short(f["score"])
        table.add_row(Text(f["rule"]), score, Text(evidence), style=STYLES[f["severity"]])
    return table


def _short(score: float) -> str:
    return f"{score:.2f}" if score < 100 else f"{score:.0f}" if score < 1e4 else "> 9999"


def _skipped(skipped: list[dict[str, Any]]) -> Text:
    """One line for each thing that was not given."""
    by_need: dict[str, list[str]] = {}
    for s in skipped:
        by_need.setdefault(" and ".join(s["needs"]), []).append(s["rule"])
    lines = [f"Not run, needs {need}: {', '.join(names)}" for need, names in by_need.items()]
    return Text("\n".join(lines))


def _unjudged(console: Console, unjudged: list[dict[str, Any]]) -> None:
    if not unjudged:
        return
    console.print(Text(f"Not judged by some rules: {len({u['tensor'] for u in unjudged})} tensors"))
    for u in unjudged[:3]:
        console.print(Text(f"  {u['tensor']}: {u['reason']} ({', '.join(u['rules'][:3])})"))
    if len(unjudged) > 3:
        console.print(Text(f"  and {len(unjudged) - 3} more, see --json or -o"))
