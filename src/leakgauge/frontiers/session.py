"""A frontier from a plan to its report: attacks, client time, trainings, page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leakgauge.compute import Compute
from leakgauge.executor import Executor, LocalPool
from leakgauge.files import write_whole
from leakgauge.frontiers.accuracy import run_trainings
from leakgauge.frontiers.costs import measure
from leakgauge.frontiers.folder import HINT, FrontierFolder
from leakgauge.frontiers.leakage import run_leakage
from leakgauge.frontiers.page import render
from leakgauge.frontiers.plan import FrontierPlan
from leakgauge.frontiers.report import Report, report_of
from leakgauge.frontiers.results import RowFinding, RowResult
from leakgauge.study.audited import copied, frame, table

if TYPE_CHECKING:
    import pandas

OnProgress = Callable[[int, int, str], None]
"""(finished, all, name of the last)."""

REPORTS = ("report.json", "report.html")
FILES = (*REPORTS, "frontier.json", "leakage", "utility", "costs")


def run_frontier(
    plan: FrontierPlan,
    output: Path,
    *,
    workers: int = 1,
    compute: Compute = Compute(),
    progress: Callable[[str], OnProgress] | None = None,
    executor: Executor | None = None,
) -> Report:
    """Runs what is not yet finished, writes report.html and report.json, and returns what the latter holds.

    Args:
        progress: called with each stage's title; what it returns is told how far the stage is.
        executor: where attacks run; by default so many `workers` on this machine, where trainings always do.

    Raises:
        InputError: the folder belongs to another plan or cannot be written, or an input turned out bad.
    """

    def stage(title: str) -> OnProgress:
        return (lambda *_: None) if progress is None else progress(title)

    with FrontierFolder.open(output, digest=plan.digest, raw=plan.config, contents=plan.contents()) as folder:
        pool = LocalPool(workers) if executor is None else executor
        run_leakage(plan, folder, pool=pool, compute=compute, on_trial=stage("attacks"))
        costs = stage("client time")
        measure(plan, folder, on_row=lambda done, total: costs(done, total, ""))
        if plan.utility is not None:
            run_trainings(plan, folder, workers=workers, compute=compute, on_training=stage("trainings"))
        report = report_of(plan, folder, compute)
        report.write(output / "report.json")
        write_whole(output / "report.html", render(report), HINT)
    return report


@dataclass(frozen=True)
class RowLine:
    """A row of a frontier on one line: what it costs, and what either attacker identified."""

    row: str
    accuracy: str
    naive: str
    adapted: str
    highest: str
    epsilon: str
    time: str


HEADS = ("row", "accuracy", "naive", "adapted", "PSNR", "ε", "time")


def line_of(row: RowResult) -> RowLine:
    """The row in a few words."""
    naive, adapted = row.leakage.naive, row.leakage.adapted
    highest = [f.psnr.highest for f in (naive, adapted) if f and f.psnr]
    value, epsilon = row.accuracy.value, row.privacy.epsilon
    return RowLine(
        row.label,
        "–" if value is None else f"{100 * value:.1f} %",
        _share(naive),
        _share(adapted),
        f"{max(highest):.1f} dB" if highest else "–",
        "none" if epsilon is None else f"{epsilon:.3g}",
        f"{row.cost.seconds.relative:.2f} ×" if row.cost else "–",
    )


def _share(finding: RowFinding | None) -> str:
    return f"{finding.identified.count}/{finding.identified.n}" if finding and finding.identified else "–"


@dataclass(frozen=True, eq=False)
class Frontier:
    """A finished frontier, as `leakgauge.frontier` returns it.

    Attributes:
        report: what report.json holds.
        folder: where its files lie; a temporary one, which goes with this object, where none was given.
    """

    report: Report = field(repr=False)
    folder: Path

    @property
    def lines(self) -> tuple[RowLine, ...]:
        """The rows, the undefended one first."""
        return tuple(map(line_of, self.report.rows))

    @property
    def recommendation(self) -> tuple[str, ...]:
        """Headline and sentences."""
        found = self.report.recommendation
        return (found.headline, *found.sentences)

    def save(self, folder: Path | str) -> Path:
        """Copies reports and results. Raises `InputError` where there are such."""
        return copied(self.folder, Path(folder), FILES)

    def to_frame(self) -> pandas.DataFrame:
        """A row for each strength of each defence. Raises `InputError` where pandas is not installed."""
        return frame([vars(line) for line in self.lines])

    def _repr_html_(self) -> str:
        rows = [tuple(vars(line).values()) for line in self.lines]
        return table(self.report.name, HEADS, rows, self.recommendation)
