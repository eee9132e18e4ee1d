"""An audit as the command line runs it: plan, progress, reports, summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from leakgauge.compute import Compute
from leakgauge.files import write_whole
from leakgauge.report.html import render
from leakgauge.study.document import FREE_SPACE, summary, write_json
from leakgauge.study.explaining.explained import Explained
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.run import run
from leakgauge.study.store import Store
from leakgauge.study.written import resolve_plan

SHOWN = 3
"""Reasons of a broken gate that the summary prints."""


def run_audit(
    path: Path | None, output: Path, *, workers: int, device: str, counts_only: bool, anew: bool = False
) -> None:
    """Everything behind `leakgauge audit`."""
    console = Console()
    compute = Compute(device=device)
    compute.apply()
    plan = resolve_plan(yaml.safe_load(example_text()) if path is None else read_yaml(path))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    bar = progress.add_task("trials", total=None)

    def on_trial(done: int, total: int, last: str) -> None:
        progress.start()  # not before the output folder is known to be good
        progress.update(bar, completed=done, total=total, description=last[-60:] or "trials")

    try:
        store = run(
            plan,
            output,
            workers=workers,
            compute=compute,
            counts_only=counts_only,
            on_trial=on_trial,
            anew=anew,
            on_explained=lambda explained: _print_explained(console, explained),
        )
    finally:
        progress.stop()
    told = summary(store)
    html, _ = write_reports(store, told)
    _summary(console, told, output)
    console.print(f"report: {html}", soft_wrap=True)
    store.close()


TENSORS = 5
"""Of a captured update, the least explained, that are printed."""


def _print_explained(console: Console, explained: Explained) -> None:
    """Before the trials, so that a wrong plan can be stopped."""
    console.print(explained.sentence, markup=False, highlight=False)
    if not explained.holds:
        for t in explained.tensors[:TENSORS]:
            row = f"  {t.name}: cosine {t.fit.cosine:.3f}, norm {t.fit.norm:.3g}, {100 * t.energy:.0f} % of the update"
            console.print(row, markup=False, highlight=False)


def write_reports(store: Store, told: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """report.html and report.json, each written whole.

    Args:
        told: the store's `summary`, where it is at hand.
    """
    told = summary(store) if told is None else told
    path = write_json(store, told)
    text = render(told | {"trials": store.each()}, store.pictures())
    return write_whole(store.folder / "report.html", text, FREE_SPACE), path


def _summary(console: Console, report: dict[str, Any], folder: Path) -> None:
    verdict = report["verdict"]
    table = Table(title=f"{report['config'].get('name', 'audit')}: {verdict['level'].replace('_', ' ')}")
    for column in ("setting", "attack", "verdict", "identified [95 %]", "PSNR: mean, highest"):
        table.add_column(column, overflow="fold")
    audited = [f for f in verdict["findings"] if not f["control"]]
    several = len({f["scenario"]["model"] for f in audited}) > 1
    told = (*(["model"] if several else []), "client", "defense")
    for f in audited:
        s, psnr, rate = f["scenario"], f["psnr"], f["identified"]
        table.add_row(
            ", ".join(s[part] for part in told),
            f["attack"].split("(")[0],
            f["level"].replace("_", " "),
            "–" if rate is None else f"{rate['count']}/{rate['n']} [{rate['low']:.2f}, {rate['high']:.2f}]",
            "–" if psnr is None else f"{psnr['mean']:.1f}, {psnr['highest']:.1f} dB",
        )
    console.print(table)
    for sentence in verdict["headline"]:
        console.print(sentence)
    gate = verdict["gate"]
    if gate["passed"] is None:
        return
    console.print("gate passed" if gate["passed"] else "gate failed:")
    for reason in gate["reasons"][:SHOWN]:
        console.print(f"  {reason}")
    if len(gate["reasons"]) > SHOWN:
        console.print(f"  and {len(gate['reasons']) - SHOWN} more reasons: leakgauge gate {folder}", soft_wrap=True)
