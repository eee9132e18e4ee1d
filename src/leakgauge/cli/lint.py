"""`leakgauge lint`: what can be said before any attack is run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from leakgauge.cli.options import PATH, to_json
from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.study.grammar import read_yaml

if TYPE_CHECKING:
    from leakgauge.risk.lint import LintFinding

HINT = "give a plan (.yaml), an update (.safetensors), or a folder with updates or a Flower app's source"


@click.command()
@click.argument("target", type=PATH)
@to_json("the findings")
def lint(target: Path, json_file: Path | None) -> None:
    """What gives data away before any attack is run?

    TARGET is a plan, a captured update, or a folder with captured updates or the source of a Flower app (which is
    parsed, never run). With a plan, one client of each setting is simulated and read by every read that certifies
    itself.

    Exit code 0: nothing of high severity, which is no clearance; 1: something; 2: the input cannot be used.
    """
    from leakgauge.risk.lint import LintSeverity, findings_text, sorted_findings
    from leakgauge.study.lint import print_findings

    found = sorted_findings(findings(target))
    if json_file is not None:
        write_whole(json_file, findings_text(found))
    print_findings(Console(), found)
    sys.exit(1 if any(f.severity is LintSeverity.HIGH for f in found) else 0)


def findings(target: Path) -> Iterator[LintFinding]:
    """By what the target is. Updates of a folder are those of its files that can be read as one: other tensors
    (weights, examples) are passed by."""
    from leakgauge.risk.lint import lint_source, lint_update
    from leakgauge.study.lint import lint_plan
    from leakgauge.study.plan import resolve_plan
    from leakgauge.update import Update

    require(target.exists(), str(target), "is not there", HINT)
    suffix = "" if target.is_dir() else target.suffix
    if suffix in (".yaml", ".yml"):
        yield from lint_plan(resolve_plan(read_yaml(target)))
    elif suffix == ".py":
        yield from lint_source(target)
    elif not target.is_dir():
        yield from lint_update(Update.load(target), target.name)
    else:
        sources, read = sorted(target.rglob("*.py")), 0
        for path in sorted(target.rglob("*.safetensors")):
            try:
                update = Update.load(path)
            except InputError:
                continue
            read += 1
            yield from lint_update(update, str(path.relative_to(target)))
        require(read + len(sources) > 0, str(target), "holds no update and no source", HINT)
        for path in sources:
            yield from lint_source(path)
