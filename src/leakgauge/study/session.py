"""An audit from a plan to its pages, as `leakgauge.audit` returns it and as the command line shows it."""

import io
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.compute import Compute, available
from leakgauge.errors import require
from leakgauge.executor import RayCluster
from leakgauge.files import fingerprint_of_file, private_folder, write_whole
from leakgauge.report.html import render, sheet
from leakgauge.risk.lint import LINT, LintFinding, findings_text
from leakgauge.study.document import FREE_SPACE, summary, verdict_of, write_json
from leakgauge.study.explaining.setting import Explained
from leakgauge.study.grammar import read_yaml
from leakgauge.study.judging.results import Finding
from leakgauge.study.judging.verdict import HEADS, Verdict, setting_rows
from leakgauge.study.lint import lint_once, print_rules
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.study.run import ProgressShown, Running, run
from leakgauge.study.store import RESULTS, Store
from leakgauge.workers import Executor, LocalPool

MEANT = "The example is meant to fail its gate: some of its clients have no defence."
WIDTH = 100  # columns of what a notebook shows
PAGE, SHEET = "report.html", "sheet.html"  # files of the page, and of the one that a person signs


class Finished:
    """What a run left in its folder, which it shows and copies."""

    folder: Path
    files: ClassVar[tuple[str, ...]]

    def show(self, console: Console) -> None:
        raise NotImplementedError

    def save(self, folder: Path | str) -> Path:
        """Copies reports and results, for `leakgauge report` and `gate`. Raises `InputError` where there are such."""
        folder = Path(folder)
        there = [name for name in self.files if (folder / name).exists()]
        require(not there, "folder", f"{folder} holds {', '.join(there)} already", "give another folder")
        private_folder(folder)
        for name in self.files:
            if (self.folder / name).is_dir():
                shutil.copytree(self.folder / name, folder / name)
            elif (self.folder / name).exists():
                shutil.copy2(self.folder / name, folder / name)
        return folder

    def own(self, given: Path | str | None) -> None:
        """Its folder goes away with it where that is a temporary one, for none was given."""
        if given is None:
            weakref.finalize(self, shutil.rmtree, self.folder, True)

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), record=True, width=WIDTH)
        self.show(console)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


@dataclass(frozen=True, eq=False)
class Audit(Finished):
    """A finished audit."""

    name: str
    verdict: Verdict  #: what all trials say together; never "safe".
    decision: Mapping[str, Any]  #: report.json's ``decision``: the page's answer, its reason and what to do next
    #: where its files lie: ``report.html``, ``report.json`` and the trials. A temporary one, which goes with this
    #: object, where `leakgauge.audit` was given none.
    folder: Path
    #: what can be read without an attack, and settings that fail their purpose; the gravest first.
    lint: tuple[LintFinding, ...] = ()
    files = (*RESULTS, LINT)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each attack in each setting, the worst first and controls last."""
        return self.verdict.findings

    @property
    def passed(self) -> bool | None:
        """Whether the gate passes; `None` without one."""
        return self.verdict.gate.passed

    def show(self, console: Console) -> None:
        verdict, decision = self.verdict, self.decision
        table = Table(title=f"{self.name}: {decision['title']}", box=None, title_justify="left", pad_edge=False)
        for head in HEADS:
            table.add_column(head, no_wrap=head != "setting", justify="right" if head in HEADS[2:] else "left")
        for row in setting_rows(verdict):
            table.add_row(*map(Text, row))
        console.print(table)
        lines = [
            f"{decision['title']}: {decision['reason']}",
            f"update: {decision['origin']['words']}",
            f"labels: {decision['labels']}",
            f"how sure: {decision['sure']}",
            f"next: {decision['next']['step']}",
            *(said for said in (*verdict.headline, verdict.gate.sentence) if said != decision["reason"]),
        ]
        console.print(*map(Text, lines), sep="\n")
        if verdict.gate.reasons:
            console.print(Text(f"each reason: leakgauge gate -v {self.folder}"), soft_wrap=True)


def audited(
    plan: Plan,
    folder: Path,
    how: Running = Running(),
    on_lint: Callable[[Sequence[LintFinding]], None] = lambda _: None,
) -> Audit:
    """Lints a plan, runs what is not yet finished, and writes the pages. `on_lint` gets what the lint found, where it
    is new."""
    linted, is_new = lint_once(plan, folder, anew=how.anew)

    def on_begun(begun: Store) -> None:
        write_whole(folder / LINT, findings_text(linted, begun.audit.identity), FREE_SPACE)
        if is_new:
            on_lint(linted)

    with closing(run(plan, folder, replace(how, on_begun=on_begun))) as store:
        verdict, decision = write_reports(store)
    return Audit(plan.keys.name, verdict, decision, folder, tuple(linted))


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
    """Everything behind `leakgauge audit`, with its options. Returns whether the gate passed, `None` without one.
    Raises `Unexplained` where the plan does not explain a captured update, unless that is to be attacked `anyway`."""
    console, share = Console(), None if memory is None else int(memory * 1e9)
    if memory is None and ray is None:
        share = max(1, available(device) // workers)
    compute = Compute(device=device, memory=share)
    compute.apply()
    plan = resolve_plan(read_yaml(path))

    def on_explained(explained: Explained) -> None:
        print_explained(console, explained)
        if not explained.holds and not anyway:
            raise Unexplained

    with closing(ProgressShown(console)) as progress:
        how = Running(
            compute=compute,
            counts_only=counts_only,
            anew=anew,
            url=store,
            executor=executor_of(ray, workers, compute, output),
            on_trial=progress.stage("trials"),
            on_explained=on_explained,
        )
        done = audited(plan, output, how, lambda linted: print_rules(console, linted, f"{output / LINT}"))
    done.show(console)
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


TENSORS = 5  # tensors of a captured update that are printed, the least explained ones


def print_explained(console: Console, explained: Explained) -> None:
    """Before the trials, so that a wrong plan can be stopped."""
    console.print(explained.sentence, markup=False, highlight=False)
    for t in () if explained.holds else explained.tensors[:TENSORS]:
        row = f"  {t.name}: cosine {t.cosine:.3f}, norm {t.norm:.3g}, {100 * (t.energy or 0.0):.0f} % of the update"
        console.print(row, markup=False, highlight=False)


def write_reports(store: Store, *, by: str = "", to: str = "") -> tuple[Verdict, Mapping[str, Any]]:
    """report.html, report.json and the sheet to sign, sheet.html, each written whole."""
    judged = verdict_of(store)
    told = summary(store, judged)
    path = write_json(store, told, judged)
    signed = sheet(told, judged, digest=fingerprint_of_file(path), by=by, to=to)
    write_whole(store.folder / SHEET, signed, FREE_SPACE)
    write_whole(store.folder / PAGE, render(told, judged, store.trials(), store.pictures()), FREE_SPACE)
    return judged, told["decision"]
