"""`leakgauge frontier`: plan, progress, page, summary."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from leakgauge.cli.train import read_option
from leakgauge.compute import Compute
from leakgauge.errors import require
from leakgauge.files import write_whole
from leakgauge.frontiers.accuracy import run_trainings
from leakgauge.frontiers.costs import measure
from leakgauge.frontiers.document import document, write_json
from leakgauge.frontiers.folder import HINT, Folder
from leakgauge.frontiers.leakage import run_leakage
from leakgauge.frontiers.page import render
from leakgauge.frontiers.written import overlaid, resolve_frontier
from leakgauge.study.grammar import read_yaml

QUICK: Mapping[str, Any] = {
    "data": {"images": 4},
    "budget": {"gradient_evaluations": 100},
    "utility": {"rounds": 15, "examples": 20_000, "test_examples": 4000, "evaluate_every": 5},
}
"""What --quick changes in a plan, beside the strengths: of each family the first and the last."""


def example_text() -> str:
    """The embedded plan, comments included."""
    return files("leakgauge.frontiers").joinpath("example.yaml").read_text(encoding="utf-8")


def quick(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A plan cut down to a run of at most ten minutes on two cores, for the example's size."""
    made = overlaid(raw, QUICK)
    strengths = made.get("defenses")
    if isinstance(strengths, dict):
        ends = {k: [v[0], v[-1]] if isinstance(v, list) and len(v) > 2 else v for k, v in strengths.items()}
        made["defenses"] = ends
    return made


def frontier_command(
    path: Path | None,
    output: Path,
    *,
    is_quick: bool,
    train: str | None,
    test: str | None,
    json_file: Path | None,
    workers: int,
    console: Console,
) -> None:
    """Everything behind the command. Killed and run again it goes on where it was; a finished run does no work."""
    if json_file is not None:
        there = json_file.absolute().parent.is_dir() and not json_file.is_dir()
        require(there, "--json", f"cannot write '{json_file}'", "name a file in a folder that exists")
    compute = Compute()
    compute.apply()
    raw = yaml.safe_load(example_text()) if path is None else read_yaml(path)
    raw = quick(raw) if is_quick else raw
    data = {key: read_option(text, f"--{key}") for key, text in (("train", train), ("test", test)) if text is not None}
    raw = overlaid(raw, {"utility": data}) if data else raw
    plan = resolve_frontier(raw)
    folder = Folder.open(output, digest=plan.digest, raw=plan.config)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def bar(title: str) -> Any:
            task = progress.add_task(title, total=None)
            return lambda done, total, _: progress.update(task, completed=done, total=total)

        run_leakage(plan, folder, workers=workers, compute=compute, on_trial=bar("attacks"))
        costs = bar("client time")
        measure(plan, folder, on_row=lambda done, total: costs(done, total, None))
        if plan.utility is not None:
            run_trainings(plan, folder, workers=workers, compute=compute, on_training=bar("trainings"))
    report = document(plan, folder, compute)
    written = write_json(report, output / "report.json")
    page = write_whole(output / "report.html", render(report), HINT)
    if json_file is not None:
        write_json(report, json_file)
    _summary(console, report)
    console.print(f"report: {page} and {written.name}", soft_wrap=True)


def _summary(console: Console, report: Mapping[str, Any]) -> None:
    table = Table(title=str(report["config"].get("name", "frontier")))
    for column in ("row", "accuracy", "identified: naive", "adapted", "worst", "ε", "time"):
        table.add_column(column, overflow="fold")
    for row in report["rows"]:
        naive, adapted = (row["leakage"][who] for who in ("naive", "adapted"))
        worst = [f["psnr"]["highest"] for f in (naive, adapted) if f and f["psnr"]]
        value, epsilon = row["accuracy"]["value"], row["privacy"]["epsilon"]
        table.add_row(
            row["label"],
            "not measured" if value is None else f"{100 * value:.1f} %",
            _share(naive),
            _share(adapted),
            f"{max(worst):.1f} dB" if worst else "–",
            "none" if epsilon is None else f"{epsilon:.3g}",
            f"{row['cost']['seconds']['relative']:.2f} ×" if row["cost"] else "–",
        )
    console.print(table)
    console.print(report["recommendation"]["headline"])
    for sentence in report["recommendation"]["sentences"]:
        console.print(f"- {sentence}")


def _share(finding: Mapping[str, Any] | None) -> str:
    if not finding or not finding["identified"]:
        return "no result"
    return f"{finding['identified']['count']}/{finding['identified']['n']}"
