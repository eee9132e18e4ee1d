"""The result of a check as a page and on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from leakgauge.errors import printable
from leakgauge.inspection.verdict import CheckLevel, Inspection, RuleFinding, Severity
from leakgauge.report.html import page

TONES = {
    CheckLevel.CRAFTED: "exposed",
    CheckLevel.SUSPICIOUS: "partial",
    CheckLevel.NOTHING_FOUND: "not_recovered",
    CheckLevel.NOT_JUDGED: "inconclusive",
    Severity.CRAFTED: "exposed",
    Severity.SUSPICIOUS: "partial",
    Severity.NOTE: "inconclusive",
}
"""Levels here to the colours and icons of the audit's report."""

TITLES = {
    CheckLevel.CRAFTED: "Crafted",
    CheckLevel.SUSPICIOUS: "Suspicious",
    CheckLevel.NOTHING_FOUND: "Nothing found",
    CheckLevel.NOT_JUDGED: "Not judged",
    Severity.CRAFTED: "Crafted",
    Severity.SUSPICIOUS: "Suspicious",
    Severity.NOTE: "Below its limit",
}


def render(result: Inspection) -> str:
    """The page of a result."""
    document = result.to_json()
    filters = {"figure": _figure}
    return page("inspection", "page.html.j2", filters, result=result, document=document, tones=TONES, titles=TITLES)


def _figure(value: float | None) -> str:
    """Three digits, or a dash for none."""
    if value is None:
        return "–"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}".replace(",", " ")


WIDTH = 80
"""Columns of a terminal that every line of text fits into; fingerprints and names of tensors stay whole."""
NOTABLE = 0.5
"""Score from which a finding below its limit is worth a line."""
WHERE = 2
"""Further names of tensors that an alarm shows, and names of those that were not judged."""


def lines(result: Inspection, *, verbose: bool = False) -> Iterator[str]:
    """The result for a terminal: verdict, alarms in full, near misses, and what would let more rules run.

    Args:
        verbose: every finding, every tensor that a rule could not judge, and the names of the rules that did not run.
    """
    yield f"{printable(result.model)}: {result.level.value.replace('-', ' ')}"
    for sentence in result.headline:
        yield from textwrap.wrap(sentence, WIDTH)
    shown = [f for f in result.findings if verbose or f.score >= NOTABLE]
    if shown:
        yield ""
        yield "score = measured / limit: from 1 on an alarm, from 3 on crafted"
    for f in shown:
        yield from _finding(f)
    yield ""
    yield f"{len(result.findings)} rules ran, {len(result.skipped)} did not{'; -v shows all' * (not verbose)}"
    yield from _skipped(result, verbose)
    if result.unjudged:
        names = list(dict.fromkeys(u.tensor for u in result.unjudged))
        more = f" and {len(names) - WHERE} more" * (len(names) > WHERE)
        yield from _wrapped(f"could not be judged by some rules: {', '.join(names[:WHERE])}{more}")
        for u in result.unjudged if verbose else ():
            yield from _wrapped(f"  {u.tensor}: {u.reason} ({', '.join(u.rules)})")
    if not result.models:
        yield "Limits are provisional: not measured on honest models."
    yield f"sha256:{result.fingerprint}"


def _finding(f: RuleFinding) -> Iterator[str]:
    score = "no limit" if f.limit is None else _short(f.score)
    yield from _wrapped(f"{f.rule} {score}: {f.evidence}")
    if f.alarms:
        if len(f.where) > 1:
            more = len(f.where) - WHERE - 1
            yield from _wrapped(
                "  also in " + ", ".join(f.where[1 : WHERE + 1]) + (f" and {more} more" if more > 0 else "")
            )
        yield from _wrapped(f"  {f.meaning}")


def _skipped(result: Inspection, verbose: bool) -> Iterator[str]:
    """One line for each thing that was not given."""
    by_need: dict[str, list[str]] = {}
    for s in result.skipped:
        by_need.setdefault(" and ".join(s.needs), []).append(s.rule)
    for need, names in by_need.items():
        yield from _wrapped(f"  {len(names)} more with {need}" + (f": {', '.join(names)}" if verbose else ""))


def _wrapped(text: str) -> list[str]:
    text = printable(text)
    start = len(text) - len(text.lstrip())
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="",
        subsequent_indent=" " * max(start, 2),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _short(score: float) -> str:
    return f"{score:.2f}" if score < 100 else f"{score:.0f}" if score < 1e4 else "> 9999"
