"""Everything behind `leakgauge lint` and `leakgauge estimate`: what can be said of a plan before it runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from leakgauge.compute import Compute
from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.risk.lint import LintFinding, LintSeverity, lint_source, lint_update
from leakgauge.study.grammar import read_yaml
from leakgauge.study.pipeline.estimate import Estimate, TrialCost, estimate
from leakgauge.study.pipeline.lint import lint_plan
from leakgauge.study.pipeline.linted import findings_text, print_findings, sorted_findings
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
    return 1 if any(f.severity is LintSeverity.HIGH for f in found) else 0


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


def estimate_command(plan: Path, *, seconds: float, workers: int, json_file: Path | None, console: Console) -> None:
    """Prints a forecast.

    Raises:
        InputError: the plan cannot be used.
    """
    compute = Compute()
    compute.apply()
    found = estimate(resolve_plan(read_yaml(plan)), seconds=seconds, compute=compute)
    if json_file is not None:
        needed = None if found.needed is None or math.isinf(found.needed) else int(found.needed)
        said = {"trials": found.trials, "seconds": found.seconds, "at_least": found.is_least, "needed": needed}
        record = asdict(found) | said
        write_whole(json_file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    for cost in found.costs:
        console.print(Text(_line(cost)))
    console.print(Text(total(found, workers), style="bold"))
    for sentence in filter(None, (decision(found), power(found))):
        console.print(Text(sentence))


def _line(cost: TrialCost) -> str:
    if cost.problem:
        return f"{cost.label}: {cost.trials} trials, not measured ({cost.problem})"
    return f"{cost.label}: {cost.trials} trials of {'at least ' * cost.is_least}{duration(cost.seconds)}"


def total(found: Estimate, workers: int) -> str:
    """Trials and time of the whole audit."""
    least = "at least " * found.is_least
    shared = duration(found.seconds / workers)
    return f"{found.trials} trials, {least}about {shared} with {workers} worker{'s' * (workers != 1)} on this machine."


def decision(found: Estimate) -> str:
    """Whether the gate can decide with the plan's clients."""
    if found.needed is None:
        return "The plan has no gate with a limit on a share, so no number of clients is needed to decide."
    if math.isinf(found.needed):
        return "The gate allows none at all: no number of clients can show that. Give a limit above 0."
    needs = f"The gate needs {found.needed:.0f} clients in each setting if none is identified"
    needs += f"; the plan has {found.clients}"
    if found.clients >= found.needed:
        return f"{needs}. One that is identified needs more."
    factor, more = found.needed / max(found.clients, 1), found.needed - found.clients
    examples = f" ({more * found.batch:.0f} examples)" if found.batch > 1 else ""
    return f"{needs}, so it cannot pass: {more:.0f} more{examples}, about {factor:.1f} times the time."


def power(found: Estimate) -> str:
    """Whether a search is known to work on such clients, and what would; empty where nothing speaks against it."""
    if not found.doubts:
        return ""
    one = max((c.seconds for c in found.costs if not c.problem), default=0.0) / found.batch
    return (
        f"No search here has been shown to recover such clients ({'; '.join(found.doubts)}): where no exact read is "
        f'found, expect no answer but "not yet". Searches have shown power at data.batch: 1 (about {duration(one)} a '
        "trial, five controls) and on pictures of 32 px or less."
    )


def duration(seconds: float) -> str:
    """In the unit that a person would use."""
    if seconds < 90:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
