"""Everything behind `leakgauge lint`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.risk.lint import LintFinding, Severity, lint_update
from leakgauge.risk.lint_source import lint_source
from leakgauge.study.grammar import read_yaml
from leakgauge.study.pipeline.lint import lint_plan
from leakgauge.study.written import resolve_plan
from leakgauge.update import Update

HINT = "give a plan (.yaml), an update (.safetensors), or a folder with updates or a Flower app's source"
ORDER = tuple(Severity)
SHOWN = 3
"""Findings of a rule that the terminal shows; the JSON file has all."""


def lint_command(target: Path, *, json_file: Path | None, console: Console) -> int:
    """Prints the findings, the worst first. Returns the exit code: 1 where one is high.

    Raises:
        InputError: nothing there can be read.
    """
    found = sorted(findings(target), key=lambda f: ORDER.index(f.severity))
    if json_file is not None:
        records = [asdict(f) | {"severity": f.severity.value} for f in found]
        write_whole(json_file, json.dumps({"findings": records}, indent=1, ensure_ascii=False) + "\n")
    groups: dict[tuple[Severity, str, str], list[LintFinding]] = {}
    for f in found:
        groups.setdefault((f.severity, f.rule, f.hint), []).append(f)
    for (severity, rule, hint), members in groups.items():
        console.print(Text(f"{severity.value}: {rule}", style="bold" if severity is Severity.HIGH else ""))
        for f in members[:SHOWN]:
            residual = "" if f.residual is None else f" (unexplained: {f.residual:.1e})"
            console.print(Text(f"  {f.where}: {f.evidence}{residual}"))
        if len(members) > SHOWN:
            console.print(Text(f"  and {len(members) - SHOWN} more"))
        console.print(Text(f"  what helps: {hint}"))
    counts = ", ".join(f"{sum(f.severity is s for f in found)} {s.value}" for s in Severity)
    console.print(Text(f"{len(found)} findings: {counts}. No finding means that these rules saw nothing, no more."))
    return 1 if any(f.severity is Severity.HIGH for f in found) else 0


def findings(target: Path) -> Iterator[LintFinding]:
    """By what the target is."""
    require(target.exists(), str(target), "is not there", HINT)
    if target.is_dir():
        yield from _folder(target)
    elif target.suffix in (".yaml", ".yml"):
        yield from lint_plan(resolve_plan(read_yaml(target)))
    elif target.suffix == ".py":
        yield from lint_source(target)
    else:
        yield from lint_update(Update.load(target), target.name)


def _folder(folder: Path) -> Iterator[LintFinding]:
    """Every update that can be read as one, and every Python file; other tensors (weights, examples) are passed by."""
    updates, sources = sorted(folder.rglob("*.safetensors")), sorted(folder.rglob("*.py"))
    read = 0
    for path in updates:
        try:
            update = Update.load(path)
        except InputError:
            continue
        read += 1
        yield from lint_update(update, str(path.relative_to(folder)))
    require(read + len(sources) > 0, str(folder), "holds no update and no source", HINT)
    for path in sources:
        yield from lint_source(path)
