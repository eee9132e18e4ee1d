"""Findings of the lint: in order, printed, written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from leakgauge.risk.lint import LintFinding, Severity

ORDER = tuple(Severity)
SHOWN = 3
"""Findings of a rule that the terminal shows; the JSON file has all."""


def sorted_findings(found: Iterable[LintFinding]) -> list[LintFinding]:
    """The gravest first."""
    return sorted(found, key=lambda f: ORDER.index(f.severity))


def findings_text(found: Sequence[LintFinding]) -> str:
    """As a JSON document."""
    records = [asdict(f) | {"severity": f.severity.value} for f in found]
    return json.dumps({"findings": records}, indent=1, ensure_ascii=False) + "\n"


def read_findings(path: Path) -> list[LintFinding] | None:
    """What `findings_text` wrote; `None` where there is no such file, or none that can be read."""
    try:
        records = json.loads(path.read_text(encoding="utf-8"))["findings"]
        return [LintFinding(**record | {"severity": Severity(record["severity"])}) for record in records]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def print_findings(console: Console, found: Sequence[LintFinding]) -> None:
    """By rule, with the smallest change that helps, and a line that counts."""
    for (severity, rule, hint), members in _by_rule(found).items():
        console.print(Text(f"{severity.value}: {rule}", style="bold" if severity is Severity.HIGH else ""))
        for f in members[:SHOWN]:
            residual = "" if f.residual is None else f" (unexplained: {f.residual:.1e})"
            console.print(Text(f"  {f.where}: {f.evidence}{residual}"))
        if len(members) > SHOWN:
            console.print(Text(f"  and {len(members) - SHOWN} more"))
        console.print(Text(f"  what helps: {hint}"))
    console.print(Text(f"{_counted(found)}. No finding means that these rules saw nothing, no more."))


def print_rules(console: Console, found: Sequence[LintFinding], where: str) -> None:
    """A line a rule, and where the rest is to be read."""
    for (severity, rule, _), members in _by_rule(found).items():
        settings = list(dict.fromkeys(f.where for f in members))
        others = f", and {len(settings) - 1} more" if len(settings) > 1 else ""
        words = f"{severity.value}: {rule}: {settings[0]}{others}"
        style = "bold" if severity is Severity.HIGH else ""
        console.print(Text(words, style=style), no_wrap=True, overflow="ellipsis")
    console.print(Text(f"lint: {_counted(found)}; evidence and what helps: {where}"))


def _by_rule(found: Sequence[LintFinding]) -> dict[tuple[Severity, str, str], list[LintFinding]]:
    groups: dict[tuple[Severity, str, str], list[LintFinding]] = {}
    for f in found:
        groups.setdefault((f.severity, f.rule, f.hint), []).append(f)
    return groups


def _counted(found: Sequence[LintFinding]) -> str:
    counts = ", ".join(f"{sum(f.severity is s for f in found)} {s.value}" for s in Severity)
    return f"{len(found)} findings: {counts}"
