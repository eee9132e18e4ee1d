"""An audit as the command line runs it: plan, progress, reports, summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from leakgauge.compute import Compute, available
from leakgauge.executor import Executor, LocalPool
from leakgauge.files import fingerprint_of_file, write_whole
from leakgauge.report.html import render
from leakgauge.report.sheet import commit_of, sheet
from leakgauge.study.document import FREE_SPACE, summary, verdict_of, write_json
from leakgauge.study.explaining.explanation import Explained
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.judging.verdict import HEADS, Verdict, setting_rows
from leakgauge.study.pipeline.lint import lint_once
from leakgauge.study.pipeline.lint_file import LINT, findings_text, print_rules
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import run
from leakgauge.study.store import Store

MEANT = "The example is meant to fail its gate: some of its clients have no defence."


SHEET = "sheet.html"
"""File of the page that a person signs, beside the report."""


class Unexplained(Exception):
    """A plan does not explain the update that it was to audit, and nothing was attacked."""


def run_audit(
    path: Path | None,
    output: Path,
    *,
    workers: int,
    device: str,
    counts_only: bool,
    anew: bool = False,
    memory: float | None = None,
    ray: str | None = None,
    store: str | None = None,
    anyway: bool = True,
) -> bool | None:
    """Everything behind `leakgauge audit`. Returns whether the gate passed, `None` without one.

    Args:
        memory: gigabytes that a step of a search may take in each worker; else this machine's workers share what is
            free equally.
        ray: address of a cluster that runs the trials in place of this machine's `workers`.
        store: URL of a team's PostgreSQL database.
        anyway: whether to attack a captured update that the plan does not explain.

    Raises:
        Unexplained: it does not, and that was not asked for.
    """
    console = Console()
    compute = Compute(device=device, memory=None if memory is None else int(memory * 1e9))
    if memory is None and ray is None:
        compute = replace(compute, memory=max(1, available(device) // workers))
    compute.apply()
    plan = resolve_plan(yaml.safe_load(example_text()) if path is None else read_yaml(path))
    linted, is_new = lint_once(plan, output, anew=anew)

    def on_begun(begun: Store) -> None:
        write_whole(output / LINT, findings_text(linted, begun.audit.identity), FREE_SPACE)
        if is_new:
            print_rules(console, linted, f"{output / LINT}")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    bar = progress.add_task("trials", total=None)
    told_by_line = ProgressLines()

    def on_trial(done: int, total: int, last: str) -> None:
        if not console.is_terminal:
            told_by_line(done, total)
        progress.start()  # not before the output folder is known to be good
        progress.update(bar, completed=done, total=total, description=last[-60:] or "trials")

    def on_explained(explained: Explained) -> None:
        print_explained(console, explained)
        if not explained.holds and not anyway:
            raise Unexplained

    try:
        filled = run(
            plan,
            output,
            workers=workers,
            compute=compute,
            counts_only=counts_only,
            on_trial=on_trial,
            anew=anew,
            on_begun=on_begun,
            on_explained=on_explained,
            url=store,
            executor=executor_of(ray, workers, compute, output),
        )
    finally:
        progress.stop()
    judged = verdict_of(filled)
    told = summary(filled, judged)
    html, _ = write_reports(filled, told)
    _summary(console, plan.name, judged, told["decision"], output)
    if path is None:
        console.print(Text(MEANT))
    console.print(f"report: {html}", soft_wrap=True)
    filled.close()
    return judged.gate.passed


EVERY = 30.0
"""Seconds between two lines of progress, at least."""
FORESEEN = 3
"""Ended trials from which the others' time is foretold: the first ones load libraries and take the cheapest."""


@dataclass
class ProgressLines:
    """Progress where no terminal shows a bar: a line at once, then now and then one, on the standard error.

    Attributes:
        what: is counted.
        now: a clock in seconds.
    """

    what: str = "trials"
    now: Callable[[], float] = time.monotonic
    _first: tuple[float, int] | None = None
    _last: float = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Says how many are done, and once `FORESEEN` are, about how long the others take."""
        at = self.now()
        if self._first is None:
            self._first, self._last = (at, done), at
            if done < total:
                self._say(f"{done} of {total} {self.what}")
            return
        began, before = self._first
        if at - self._last < EVERY or done in (before, total):
            return
        self._last = at
        left = (at - began) / (done - before) * (total - done)
        words = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        self._say(f"{done} of {total} {self.what}" + f", {words} left" * (done - before >= FORESEEN))

    @staticmethod
    def _say(words: str) -> None:
        Console(stderr=True).print(Text(words))


def executor_of(ray: str | None, workers: int, compute: Compute, output: Path) -> Executor:
    """This machine's processes, or a cluster's, where a trial declares its threads and a share of its device."""
    if ray is None:
        return LocalPool(workers)
    from leakgauge.executor import RayCluster

    gpus = 1.0 if compute.device.startswith("cuda") else 0.0
    return RayCluster(ray, cpus=compute.threads, gpus=gpus, logs=output / "logs")


TENSORS = 5
"""Tensors of a captured update that are printed, the least explained ones."""


def print_explained(console: Console, explained: Explained) -> None:
    """Before the trials, so that a wrong plan can be stopped."""
    console.print(explained.sentence, markup=False, highlight=False)
    if not explained.holds:
        for t in explained.tensors[:TENSORS]:
            row = f"  {t.name}: cosine {t.fit.cosine:.3f}, norm {t.fit.norm:.3g}, {100 * t.energy:.0f} % of the update"
            console.print(row, markup=False, highlight=False)


def write_reports(
    store: Store, told: dict[str, object] | None = None, *, by: str = "", to: str = ""
) -> tuple[Path, Path]:
    """report.html, report.json and the sheet to sign, sheet.html, each written whole.

    Args:
        told: the store's `summary`, where it is at hand.
        by, to: who audited, and for whom, on the sheet.
    """
    told = summary(store) if told is None else told
    path = write_json(store, told)
    signed = sheet(told, digest=fingerprint_of_file(path), commit=commit_of(store.folder), by=by, to=to)
    write_whole(store.folder / SHEET, signed, FREE_SPACE)
    text = render(told | {"trials": store.each()}, store.pictures())
    return write_whole(store.folder / "report.html", text, FREE_SPACE), path


def _summary(console: Console, name: str, verdict: Verdict, decision: Mapping[str, Any], folder: Path) -> None:
    """A line for each setting, the decision, the headline, and the gate in one line."""
    table = Table(title=f"{name}: {decision['title']}", box=None, title_justify="left", pad_edge=False)
    for head in HEADS:
        table.add_column(head, no_wrap=head != "setting", justify="right" if head in HEADS[2:] else "left")
    for row in setting_rows(verdict):
        table.add_row(*map(Text, row))
    console.print(table)
    for title, text in (
        (decision["title"], decision["reason"]),
        ("update", decision["origin"]["words"]),
        ("labels", decision["labels"]),
        ("how sure", decision["sure"]),
        ("next", decision["next"]["step"]),
    ):
        console.print(Text(f"{title}: {text}"))
    for sentence in (*verdict.headline, verdict.gate.sentence):
        if sentence != decision["reason"]:
            console.print(Text(sentence))
    if verdict.gate.reasons:
        console.print(Text(f"each reason: leakgauge gate -v {folder}"), soft_wrap=True)
