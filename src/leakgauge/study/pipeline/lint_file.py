"""What the lint found before an audit's trials: the file beside the store that keeps it, and its words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from leakgauge.errors import InputError, said
from leakgauge.files import read_json, sealed, unsealed
from leakgauge.risk.lint import LintFinding, LintSeverity

LINT = "lint.json"
"""In the audit's folder."""
NOT_RUN = "not-run"
"""Rule of the one finding that stands where no lint of the audit is."""
FINDINGS = TypeAdapter(list[LintFinding])
ORDER = tuple(LintSeverity)
SHOWN = 3
"""Findings of a rule that the terminal shows; the JSON file has all."""


def sorted_findings(found: Iterable[LintFinding]) -> list[LintFinding]:
    """The gravest first."""
    return sorted(found, key=lambda f: ORDER.index(f.severity))


def findings_text(found: Sequence[LintFinding], audit: str = "") -> str:
    """As a JSON document.

    Args:
        audit: identity of the audit whose plan was read; empty where it is none.
    """
    of = {"audit": audit} if audit else {}
    return json.dumps(sealed({**of, "findings": records_of(found)}), indent=1, ensure_ascii=False) + "\n"


def records_of(found: Sequence[LintFinding]) -> list[dict[str, object]]:
    """As JSON has them."""
    return list(FINDINGS.dump_python(list(found), mode="json"))


def read_lint(folder: Path, audit: str) -> list[LintFinding]:
    """What `findings_text` wrote beside this audit. Where it is missing, or of another audit, one finding says so: that
    nothing is there is not that nothing was found.

    Raises:
        InputError: the file is damaged.
    """
    file = folder / LINT
    try:
        found = unsealed(read_json(file))
        own, of = FINDINGS.validate_python(found["findings"]), found.get("audit")
    except FileNotFoundError:
        return [_not_run("is missing")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = f"remove it and run the same command again: {file}"
        raise InputError("folder", f"{LINT} cannot be read ({said(error)})", hint) from error
    return own if of == audit else [_not_run("is of another audit")]


def _not_run(why: str) -> LintFinding:
    evidence = f"{LINT} {why}: what can be read exactly, without a search, is not known"
    return LintFinding(NOT_RUN, LintSeverity.MEDIUM, "audit", evidence, "run the same command again: trials are kept")


def print_findings(console: Console, found: Sequence[LintFinding]) -> None:
    """By rule, with the smallest change that helps, and a line that counts."""
    for (severity, rule, hint), members in _by_rule(found).items():
        console.print(Text(f"{severity.value}: {rule}", style="bold" if severity is LintSeverity.HIGH else ""))
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
        style = "bold" if severity is LintSeverity.HIGH else ""
        console.print(Text(words, style=style), no_wrap=True, overflow="ellipsis")
    console.print(Text(f"lint: {_counted(found)}; evidence and what helps: {where}"))


def _by_rule(found: Sequence[LintFinding]) -> dict[tuple[LintSeverity, str, str], list[LintFinding]]:
    groups: dict[tuple[LintSeverity, str, str], list[LintFinding]] = {}
    for f in found:
        groups.setdefault((f.severity, f.rule, f.hint), []).append(f)
    return groups


def _counted(found: Sequence[LintFinding]) -> str:
    counts = ", ".join(f"{sum(f.severity is s for f in found)} {s.value}" for s in LintSeverity)
    return f"{len(found)} findings: {counts}"
