"""An audit from a plan to its pages, as `leakgauge.audit` returns it and as the command line shows it."""

from __future__ import annotations

import html
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.compute import Compute, available
from leakgauge.errors import InputError, installed
from leakgauge.executor import RayCluster
from leakgauge.files import fingerprint_of_file, private_folder, write_whole
from leakgauge.report.html import commit_of, render, sheet
from leakgauge.risk.lint import LINT, LintFinding, findings_text
from leakgauge.study.document import FREE_SPACE, summary, verdict_of, write_json
from leakgauge.study.explaining.setting import Explained
from leakgauge.study.grammar import example_text, read_yaml
from leakgauge.study.judging.results import Finding
from leakgauge.study.judging.verdict import HEADS, Verdict, setting_rows
from leakgauge.study.lint import lint_once, print_rules
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.study.run import OnExplained, OnTrial, ProgressShown, run
from leakgauge.study.store import RESULTS, Store
from leakgauge.workers import Executor, LocalPool

if TYPE_CHECKING:
    import pandas


MEANT = "The example is meant to fail its gate: some of its clients have no defence."


PAGE, SHEET = "report.html", "sheet.html"
"""Files of the page, and of the one that a person signs."""


@dataclass(frozen=True, eq=False)
class Audit:
    """A finished audit.

    Attributes:
        name: as its plan has it.
        verdict: what all trials say together; never "safe".
        lint: what can be read without an attack, and settings that fail their purpose; the gravest first.
        decision: report.json's ``decision``: the page's answer, its reason and what to do next.
        folder: where its files lie: ``report.html``, ``report.json`` and the trials. A temporary one, which goes with
            this object, where `leakgauge.audit` was given none.
    """

    name: str
    verdict: Verdict
    decision: Mapping[str, Any]
    folder: Path
    lint: tuple[LintFinding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each attack in each setting, the worst first and controls last."""
        return self.verdict.findings

    @property
    def passed(self) -> bool | None:
        """Whether the gate passes; `None` without one."""
        return self.verdict.gate.passed

    def save(self, folder: Path | str) -> Path:
        """Copies report and trials; ``leakgauge report`` and ``leakgauge gate`` read such a folder.

        Raises:
            InputError: it holds an audit.
        """
        return copied(self.folder, Path(folder), (*RESULTS, LINT))

    def to_frame(self) -> pandas.DataFrame:
        """A row for each finding.

        Raises:
            InputError: pandas is not installed.
        """
        return frame([_row(found) for found in self.findings])

    def _repr_html_(self) -> str:
        words = (*self.verdict.headline, self.verdict.gate.sentence)
        return table(f"{self.name}: {self.verdict.level.words}", HEADS, setting_rows(self.verdict), words)


def lent(folder: Path | str | None) -> Path:
    """Where results go: the folder, or a temporary one where there is none."""
    return Path(mkdtemp(prefix="leakgauge-")) if folder is None else Path(folder)


Finished = TypeVar("Finished")


def owning(result: Finished, folder: Path, given: Path | str | None) -> Finished:
    """The result, with which a temporary folder goes away."""
    if given is None:
        weakref.finalize(result, shutil.rmtree, folder, True)
    return result


def _row(found: Finding) -> dict[str, object]:
    s, seen, psnr = found.scenario, found.identified, found.psnr
    return {
        "model": s.model,
        "client": s.client,
        "defense": s.defense,
        "server": s.server,
        "attack": found.attack,
        "control": found.control,
        "level": found.level.value,
        "images": found.images,
        "clients": found.clients,
        "identified": None if seen is None else seen.count,
        "identified_low": None if seen is None else seen.low,
        "identified_high": None if seen is None else seen.high,
        "recovered": found.recovered,
        "psnr_mean": None if psnr is None else psnr.mean,
        "psnr_highest": None if psnr is None else psnr.highest,
        "failed": found.failed,
        "flags": "; ".join(flag.sentence for flag in found.flags),
        "sentence": found.sentence,
    }


def frame(rows: list[dict[str, object]]) -> pandas.DataFrame:
    """Rows as a table of pandas, which is no requirement of leakgauge.

    Raises:
        InputError: it is not installed.
    """
    problem = "needs pandas, which is not installed"
    return installed("pandas", "to_frame", problem, "pip install pandas").DataFrame(rows)


def table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: tuple[str, ...]) -> str:
    """A small HTML table, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    said = "".join(f"<p>{html.escape(text)}</p>" for text in words if text)
    return f"<p><b>{html.escape(title)}</b></p><table><tr>{head}</tr>{body}</table>{said}"


def copied(source: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """The files of a finished run in another folder of their owner's alone.

    Raises:
        InputError: one of them is there already.
    """
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise InputError("folder", f"{folder} holds {', '.join(there)} already", "give another folder")
    private_folder(folder)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).exists():
            shutil.copy2(source / name, folder / name)
    return folder


def audited(
    plan: Plan,
    folder: Path,
    *,
    compute: Compute = Compute(),
    counts_only: bool = False,
    anew: bool = False,
    on_trial: OnTrial | None = None,
    on_lint: Callable[[Sequence[LintFinding]], None] | None = None,
    on_explained: OnExplained | None = None,
    url: str | None = None,
    executor: Executor | None = None,
) -> Audit:
    """Lints a plan, runs what is not yet finished, and writes the pages.

    Args:
        on_lint: gets what the lint found, the gravest first, where it is new.

    Raises:
        InputError: as `leakgauge.study.run.run`.
    """
    linted, is_new = lint_once(plan, folder, anew=anew)

    def on_begun(begun: Store) -> None:
        write_whole(folder / LINT, findings_text(linted, begun.audit.identity), FREE_SPACE)
        if is_new and on_lint is not None:
            on_lint(linted)

    store = run(
        plan,
        folder,
        compute=compute,
        counts_only=counts_only,
        anew=anew,
        on_trial=on_trial,
        on_begun=on_begun,
        on_explained=on_explained,
        url=url,
        executor=executor,
    )
    with closing(store):
        verdict, decision = write_reports(store)
    return Audit(plan.name, verdict, decision, folder, tuple(linted))


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

    def on_lint(linted: Sequence[LintFinding]) -> None:
        print_rules(console, linted, f"{output / LINT}")

    progress = ProgressShown(console)

    def on_explained(explained: Explained) -> None:
        print_explained(console, explained)
        if not explained.holds and not anyway:
            raise Unexplained

    try:
        done = audited(
            plan,
            output,
            compute=compute,
            counts_only=counts_only,
            anew=anew,
            on_trial=progress.stage("trials"),
            on_lint=on_lint,
            on_explained=on_explained,
            url=store,
            executor=executor_of(ray, workers, compute, output),
        )
    finally:
        progress.stop()
    _summary(console, done)
    if path is None:
        console.print(Text(MEANT))
    console.print(f"report: {output / PAGE}", soft_wrap=True)
    return done.passed


def executor_of(ray: str | None, workers: int, compute: Compute, output: Path) -> Executor:
    """This machine's processes, or a cluster's, where a trial declares its threads and a share of its device."""
    if ray is None:
        return LocalPool(workers)
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


def write_reports(store: Store, *, by: str = "", to: str = "") -> tuple[Verdict, Mapping[str, Any]]:
    """report.html, report.json and the sheet to sign, sheet.html, each written whole.

    Args:
        by, to: who audited, and for whom, on the sheet.

    Returns:
        What the finished trials say together, and report.json's ``decision``.
    """
    judged = verdict_of(store)
    told = summary(store, judged)
    path = write_json(store, told, judged)
    signed = sheet(told, judged, digest=fingerprint_of_file(path), commit=commit_of(store.folder), by=by, to=to)
    write_whole(store.folder / SHEET, signed, FREE_SPACE)
    write_whole(store.folder / PAGE, render(told, judged, store.trials(), store.pictures()), FREE_SPACE)
    return judged, told["decision"]


def _summary(console: Console, done: Audit) -> None:
    """A line for each setting, the decision, the headline, and the gate in one line."""
    verdict, decision = done.verdict, done.decision
    table = Table(title=f"{done.name}: {decision['title']}", box=None, title_justify="left", pad_edge=False)
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
        console.print(Text(f"each reason: leakgauge gate -v {done.folder}"), soft_wrap=True)
