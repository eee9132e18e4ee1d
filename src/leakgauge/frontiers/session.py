"""A frontier from a plan to its report and page: attacks, client time, trainings, drawing."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.compute import Compute
from leakgauge.defenses import layers_of
from leakgauge.files import refuse_foreign, write_whole
from leakgauge.frontiers import results
from leakgauge.frontiers.columns import cost_of, counters_of, exposures, privacy_of, run_leakage, run_trainings
from leakgauge.frontiers.plan import FrontierPlan, FrontierRow, row_label
from leakgauge.frontiers.results import Accuracy, Leakage, Report, RowCost, RowResult
from leakgauge.observation import Known
from leakgauge.registry import DEFENSES
from leakgauge.report.html import page
from leakgauge.report.plots import GRID, INK, LABEL, MUTED, NBSP, NONE, PAPER, SERIES, Plot, drawn, figure
from leakgauge.study.judging.results import Finding
from leakgauge.study.run import OnTrial, environment
from leakgauge.study.session import Finished
from leakgauge.study.store import Store
from leakgauge.task import Mode
from leakgauge.workers import Executor, LocalPool

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED, LEAKAGE = "measured", "leakage"
"""Folders of the stores: of trainings and client time, and of the audits, one a setting."""
FILES = ("report.json", "report.html", MEASURED, LEAKAGE)

NO_DATA = "no data to train with: give utility.train and utility.test in the plan, or --train and --test"


@dataclass(frozen=True)
class Measured:
    """An entry of the store: a training's accuracy, or the cost of a client, by `FrontierRow.training`."""

    id: str
    training: str
    accuracy: Accuracy | None = None
    cost: RowCost | None = None


def run_frontier(
    plan: FrontierPlan,
    output: Path,
    *,
    workers: int = 1,
    compute: Compute = Compute(),
    progress: Callable[[str], OnTrial] = lambda _: lambda *_: None,
    executor: Executor | None = None,
) -> Report:
    """Runs what is not yet finished, writes report.html and report.json, and returns what the latter holds.
    `progress` is called with each stage's title, and what it returns is told how far that is. Attacks run on
    `executor`, by default so many `workers` on this machine, where trainings always run."""
    refuse_foreign(output, FILES)
    costs = {f"cost {row.training}": row for row in plan.rows}
    trainings = plan.trainings()
    ids = sorted([*costs, *trainings])
    asked = plan.begun(plan.contents(), ids, environment(compute), counts_only=True)
    with closing(Store.create(output / MEASURED, asked, ids)) as store:
        pool = LocalPool(workers) if executor is None else executor
        leakage = run_leakage(plan, output / LEAKAGE, pool=pool, compute=compute, on_trial=progress("attacks"))

        def left(planned: dict[str, FrontierRow], told: OnTrial) -> dict[str, FrontierRow]:
            done = store.finished()
            told(len(done & set(planned)), len(planned), "")
            return {name: row for name, row in planned.items() if name not in done}

        def keep(found: Measured, planned: dict[str, FrontierRow], told: OnTrial) -> None:
            store.add(found.id, TypeAdapter(Measured).dump_python(found, mode="json"))
            left(planned, told)

        told, task = progress("client time"), plan.attacked_task()
        for name, row in left(costs, told).items():
            cost = cost_of(task, plan.undefended.client.value, row.client.value, row.defense.value)
            keep(Measured(name, row.training, cost=cost), costs, told)
        if plan.utility is not None:
            told = progress("trainings")

            def trained(found: Accuracy) -> None:
                keep(Measured(found.name, found.name, found), trainings, told)

            run_trainings(plan, left(trainings, told), output / MEASURED, trained, LocalPool(workers), compute)
        measured = [TypeAdapter(Measured).validate_python(record) for record in store.each()]
        report = _report(plan, leakage, measured, store.audit.created_at, compute)
        report.write(output / "report.json")
        write_whole(output / "report.html", render(report))
    return report


def _report(
    plan: FrontierPlan, leakage: list[Leakage], measured: list[Measured], created_at: str, compute: Compute
) -> Report:
    count, config = len(layers_of(plan.attacked_task().parameters)), plan.keys  # layers as Fed-CDP clips them
    accuracies = {m.training: m.accuracy for m in measured if m.accuracy}
    costs = {m.training: m.cost for m in measured if m.cost}

    def accuracy(row: FrontierRow) -> Accuracy:
        reason = NO_DATA if plan.utility is None else "not trained: the plan says train: false"
        return accuracies[row.training] if row.training in plan.trainings() and row.train else Accuracy(reason=reason)

    rows = tuple(
        RowResult(
            family=row.family,
            strength=row.strength,
            label=row_label(row, plan.undefended),
            defense=row.defense.label,
            client=row.client.label,
            batch=row.batch,
            cohort=row.cohort,
            counters=counters_of(plan, row),
            accuracy=accuracy(row),
            cost=costs.get(row.training),
            leakage=found,
            privacy=privacy_of(plan, row, exposures(plan, row), count),
        )
        for row, found in zip(plan.rows, leakage, strict=True)
    )
    named = {name for row in plan.rows for name in row.defense.names} | {"none"}
    statistics = plan.mode is Mode.TRAIN and any(k.endswith("running_mean") for k in plan.attacked_task().buffers)
    return Report(
        created_at=created_at,
        config=plan.config,
        environment=environment(compute),
        tolerance=config.tolerance.model_dump(),
        utility=_simulated(plan),
        tried=results.AttackEffort(
            attack=plan.attack.name,
            gradient_evaluations=config.budget.gradient_evaluations,
            images=config.data.images,
            seeds=len(config.seeds),
            labels=Known.LABELS.value in config.knows,
            statistics=statistics,
            absent=tuple(entry.name for entry in DEFENSES if entry.name not in named),
        ),
        rows=rows,
        recommendation=results.recommendation(rows, config.tolerance),
    )


def _simulated(plan: FrontierPlan) -> results.Simulated:
    if plan.utility is None:
        return results.Simulated(measured=False, reason=NO_DATA)
    examples, rounds = zip(*exposures(plan, plan.undefended), strict=True)
    return results.Simulated(
        measured=True,
        train=plan.utility.train.name,
        test=plan.utility.test.name,
        client=plan.undefended.client.label,
        settings=plan.keys.utility.model_dump(exclude={"train", "test"}),
        examples_of_a_client=(min(examples), max(examples)),
        rounds_of_a_client=(min(rounds), max(rounds)),
    )


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

    def share(found: Finding | None) -> str:
        return f"{found.identified.count}/{found.identified.n}" if found and found.identified else "–"

    highest = [f.psnr.highest for f in row.leakage.each if f.psnr]
    value, epsilon = row.accuracy.value, row.privacy.epsilon
    return RowLine(
        row.label,
        "–" if value is None else f"{100 * value:.1f} %",
        share(row.leakage.naive),
        share(row.leakage.adapted),
        f"{max(highest):.1f} dB" if highest else "–",
        "none" if epsilon is None else f"{epsilon:.3g}",
        f"{row.cost.seconds.relative:.2f} ×" if row.cost else "–",
    )


SHORTEST = 12  # columns that a row's name has at least


@dataclass(frozen=True, eq=False)
class Frontier(Finished):
    """A finished frontier, as `leakgauge.frontier` returns it. `folder`: where its files lie; a temporary one, which
    goes with this object, where none was given."""

    report: Report = field(repr=False)
    folder: Path
    files = FILES

    @property
    def lines(self) -> tuple[RowLine, ...]:
        return tuple(map(line_of, self.report.rows))

    @property
    def recommendation(self) -> tuple[str, ...]:
        found = self.report.recommendation
        return (found.headline, *found.sentences)

    def show(self, console: Console) -> None:
        report = self.report
        table = Table(title=report.name, box=None, title_justify="left", pad_edge=False)
        rows = [tuple(vars(line_of(row)).values()) for row in report.rows]
        widths = [max(map(len, cells)) for cells in zip(HEADS, *rows, strict=True)]
        left = console.width - sum(widths[1:]) - 2 * len(HEADS)
        table.add_column(HEADS[0], no_wrap=True, overflow="ellipsis", max_width=max(left, SHORTEST))
        for column, width in list(zip(HEADS, widths, strict=True))[1:]:
            table.add_column(column, no_wrap=True, justify="right", min_width=width)
        for cells in rows:
            table.add_row(*map(Text, cells))
        console.print(table)
        found = report.recommendation
        noted = [f"{row.words}: {'; '.join(said)}" for row, said in zip(report.rows, found.notes, strict=True) if said]
        console.print(*map(Text, (found.headline, *(f"- {said}" for said in (*found.sentences, *noted)))), sep="\n")


Ends = tuple[float, ...]  # a value and the ends of its interval


@dataclass(frozen=True)
class RowDot:
    """A row in a plot: accuracy in percent, and leakage under the two attackers."""

    row: RowResult
    accuracy: Ends
    naive: Ends
    adapted: Ends

    @property
    def stronger(self) -> Ends:
        """What the row leaks: under the better of the two attackers."""
        return max(self.adapted, self.naive, key=lambda ends: ends[0])


def _percents(value: float, low: float | None, high: float | None) -> Ends:
    return tuple(100 * (value if end is None else end) for end in (value, low, high))


def dots(rows: Sequence[RowResult]) -> list[RowDot]:
    """Rows whose accuracy was measured and that both attackers have a result of."""
    found = []
    for row in rows:
        if (a := row.accuracy).value is not None and row.judged:
            naive, adapted = (_percents(seen.rate, seen.low, seen.high) for seen, _ in row.both)
            found.append(RowDot(row, _percents(a.value, a.low, a.high), naive, adapted))
    return found


def plots(rows: Sequence[RowResult]) -> list[Plot]:
    """Leakage against accuracy; nothing for fewer than two rows."""
    if len(found := dots(rows)) < 2:
        return []
    chance = max(100 * dot.row.both[0][0].chance for dot in found)
    said = [f"Undefended: {d.adapted[0]:.3g} (pictures identified, %)." for d in found if d.row.bare]
    if others := [d for d in found if not d.row.bare]:
        least = min(others, key=lambda d: d.stronger[0])
        moved = sum(d.adapted[0] > d.naive[0] for d in others)
        said.append(f"Least under the stronger attacker: {least.stronger[0]:.3g}, {least.row.label}.")
        said.append(f"Knowing the defence helped the attacker in {moved} of {len(others)} rows.")
    draw = partial(_by_accuracy, found, chance)
    return [drawn("Accuracy against identification", " ".join(said), (), 4.6, draw)]


def _by_accuracy(found: Sequence[RowDot], chance: float, axes: "Axes") -> None:
    """A line a family through the stronger attacker's marks; the naive one's is hollow."""
    axes.set(xlabel="test accuracy, % (right is better)", ylabel="pictures identified, % (down is better)")
    axes.grid()
    for i, family in enumerate(dict.fromkeys(d.row.family for d in found if not d.row.bare)):
        # No two families share both colour and shape, so no meaning hangs on colour alone.
        colour, shape = SERIES[i % len(SERIES)][0], SERIES[(i + i // len(SERIES)) % len(SERIES)][1]
        each = [(d.accuracy, d.stronger, d.naive, d.adapted) for d in found if d.row.family == family]
        (x, left, right), (y, low, high), (naive, *_), (adapted, *_) = np.array(each).transpose(1, 2, 0)
        axes.vlines(x, low, high, color=colour, lw=0.7, alpha=0.55, zorder=1)
        axes.hlines(y, left, right, color=colour, lw=0.7, alpha=0.55, zorder=1)
        axes.vlines(x, naive, adapted, color=colour, lw=1.3, ls=":", zorder=2)
        axes.plot(x, y, "-", color=colour, lw=1.3, zorder=2)
        axes.plot(x, naive, shape, color=colour, mfc=PAPER, ms=6, mew=1.2, zorder=3)
        axes.plot(x, adapted, shape, color=colour, ms=6, zorder=4)
        axes.plot([], [], f"{shape}-", color=colour, ms=6, label=family[:LABEL].lstrip("_") or "defence")
    for d in found:
        if d.row.bare:
            axes.axvline(d.accuracy[0], color=GRID, lw=1.2, ls="--", zorder=0)
            axes.plot(d.accuracy[0], d.adapted[0], "*", color=INK, ms=11, label="undefended", zorder=5)
    axes.axhline(chance, color=INK, lw=1.1, ls=":", label="chance", zorder=0)
    axes.plot([], [], "o", color=MUTED, mfc=PAPER, ms=6, mew=1.2, label="naive attacker (hollow)")


def render(report: Report) -> str:
    """The page as one string of HTML. Equal input gives equal bytes; nothing is loaded from elsewhere."""
    return page(
        "frontiers",
        "page.html.j2",
        {"percent": percent, "size": size},
        report=report,
        rows=list(zip(report.rows, report.recommendation.notes, strict=True)),
        plots=plots(report.rows),
        plan=yaml.safe_dump(dict(report.config), sort_keys=False, allow_unicode=True, width=100),
    )


def percent(value: object, digits: int = 1) -> str:
    return figure(100 * value, digits, "%") if isinstance(value, int | float) else NONE


def size(count: object) -> str:
    if not isinstance(count, int | float):
        return NONE
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if value >= 1000:
            value, unit = value / 1000, larger
    return f"{value:.3g}{NBSP}{unit}"
