"""Everything behind `leakgauge lint`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.risk.lint import LintFinding, Severity, lint_update
from leakgauge.risk.lint_source import lint_source
from leakgauge.study.grammar import read_yaml
from leakgauge.study.pipeline.findings import findings_text, print_findings, sorted_findings
from leakgauge.study.pipeline.lint import lint_plan
from leakgauge.study.written import resolve_plan
from leakgauge.update import Update

HINT = "give a plan (.yaml), an update (.safetensors), or a folder with updates or a Flower app's source"


def lint_command(target: Path, *, json_file: Path | None, console: Console) -> int:
    """Prints the findings, the worst first. Returns the exit code: 1 where one is high.

    Raises:
        InputError: nothing there can be read.
    """
    found = sorted_findings(findings(target))
    if json_file is not None:
        write_whole(json_file, findings_text(found))
    print_findings(console, found)
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
