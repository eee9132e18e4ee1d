"""Runs a plan's trials in worker processes and stores each as it finishes."""

import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import cloudpickle
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from leakgauge.compute import Compute
from leakgauge.errors import InputError, require
from leakgauge.observation import Reconstruction, Status
from leakgauge.study.deal import Key
from leakgauge.study.explaining.setting import Explained
from leakgauge.study.identity import ANEW, changed
from leakgauge.study.levels import standings
from leakgauge.study.plan import Plan
from leakgauge.study.store import Store
from leakgauge.study.trial import TrialResult, run_trial, trial_id
from leakgauge.workers import Executor, Here, Jobs, LocalPool, LostJob, packed

OTHERS = 5.0  # seconds between two looks at what other drivers of the same audit have finished

OnTrial = Callable[[int, int, str], None]  # (finished, all, id of the last)


@dataclass(frozen=True)
class Work:
    """What a worker process needs to run any trial; the plan's classes are pickled by value where a notebook has
    them, and it is itself where it cannot be sent. `contents` is what a worker on another machine must find there."""

    plan: bytes | Plan
    compute: Compute
    counts_only: bool
    explained: tuple[Explained, ...] = ()
    contents: Mapping[str, str] | None = None


def _begin(work: Work) -> "Callable[[Job], TrialResult]":
    work.compute.apply()
    plan = work.plan if isinstance(work.plan, Plan) else cloudpickle.loads(work.plan)
    different = [] if work.contents is None else changed(work.contents, plan.contents())
    problem = f"the worker on {socket.gethostname()} has other contents of {', '.join(different)}"
    require(not different, "ray", problem, "give all workers the same files under the same paths")

    def run_one(job: Job) -> TrialResult:
        result = run_trial(plan, job.key, compute=work.compute, counts_only=work.counts_only, lost=job.lost)
        if work.explained and not job.key.control:
            result = replace(result, trial=replace(result.trial, explained=work.explained[job.key.batch].record))
        return result

    return run_one


@dataclass(frozen=True)
class Job:
    """A trial to run; `lost` for one whose earlier tries gave no answer, and whose row says why."""

    key: Key
    lost: Reconstruction | None = None


def environment(compute: Compute) -> dict[str, object]:
    """What a reader needs to repeat the numbers."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.system(),
        "machine": platform.machine(),
        "threads_per_trial": compute.threads,
        "device": compute.device,
    }


@dataclass(frozen=True, kw_only=True)
class Running:
    """How the trials of an audit run, and who is told meanwhile."""

    compute: Compute = Compute()
    counts_only: bool = False  #: keep no image, and hashes for file names
    anew: bool = False  #: anew, url: as `Store.create` has them
    url: str | None = None
    executor: Executor = LocalPool(1)
    on_trial: OnTrial = lambda *_: None
    #: once the folder is known to be this audit's, before any trial runs
    on_begun: Callable[[Store], None] = lambda _: None
    #: how much of a captured update the plan explains, before any trial runs
    on_explained: Callable[[Explained], None] = lambda _: None


def run(plan: Plan, folder: Path, how: Running = Running()) -> Store:
    """Runs what is not yet finished. Killed at any moment and run again, it ends with the same results. Raises
    `InputError` where the folder belongs to another audit, holds results of other contents or what is no audit's,
    another audit writes into it, the disk is full, an input turned out bad, or what the results rest on changed
    meanwhile; trials finished before are kept."""
    keys = {trial_id(plan, key): key for key in plan.trials()}
    ids, before = sorted(keys), plan.contents()
    on: dict[str, object] = environment(how.compute) | standings(plan.attacks, plan.defenses)
    sent: bytes | Plan = plan
    try:
        sent = packed(plan, "audit")
    except InputError as error:
        if how.executor.elsewhere:
            raise
        on["processes"] = f"one for all: the plan {error.problem}; no trial's time is limited"
        how = replace(how, executor=Here())
    asked = plan.begun(before, ids, on, counts_only=how.counts_only)
    store = Store.create(folder, asked, ids, url=how.url, anew=how.anew)
    try:
        how.on_begun(store)
        _run_left(plan, sent, keys, store, how, before)
        different = changed(before, plan.contents())
        require(not different, "output", f"{', '.join(different)} changed while the audit ran", ANEW)
    except BaseException:
        store.close()
        raise
    return store


def _run_left(
    plan: Plan, sent: bytes | Plan, keys: Mapping[str, Key], store: Store, how: Running, contents: Mapping[str, str]
) -> None:
    done = store.finished() & set(keys)
    left = [name for name in keys if name not in done]
    how.on_trial(len(done), len(keys), "")
    if not left:
        return
    explained = tuple(map(plan.explained, range(len(plan.rounds))))
    for one in explained:
        how.on_explained(one)
    there = contents if how.executor.elsewhere else None
    for name in left:  # whose examples are whose is compared once, not in every worker
        plan.client(keys[name])
    # A folder begun without images stays without, whatever this call says.
    work = Work(sent, how.compute, how.counts_only or store.audit.counts_only, explained, there)

    def keep(result: TrialResult) -> None:
        store.add(result.trial.id, result.record, result.pictures)
        done.add(result.trial.id)
        how.on_trial(len(done), len(keys), result.trial.id)

    lost: list[Job] = []

    def note(job: Job, loss: LostJob, reason: str) -> None:
        status = Status.FAILED if loss is LostJob.RAISED else Status.DIED
        lost.append(Job(job.key, Reconstruction(None, None, status, f"the trial gave no answer: {reason}")))

    def waiting() -> Iterator[Job]:
        """In the order of the plan. Where others write too, from anywhere in it, and without what they have done."""
        first, seen = secrets.randbelow(len(left)) if store.shared else 0, time.monotonic()
        for name in (*left[first:], *left[:first]):
            if store.shared and time.monotonic() > seen + OTHERS:
                done.update(store.finished() & keys.keys())
                seen = time.monotonic()
            if name not in done:
                yield Job(keys[name])

    trials = Jobs(waiting(), keep, begin=_begin, ground=work, kept="trials")
    how.executor.run_all(replace(trials, limit=plan.keys.budget.trial_seconds, on_lost=note))
    if lost:
        how.executor.run_all(replace(trials, each=lost))


EVERY = 30.0  # seconds between two lines of progress, at least
FORESEEN = 3
"""Ended trials from which the others' time is foretold: the first ones load libraries and take the cheapest."""


class ProgressShown:
    """The progress of stages: bars on a terminal, elsewhere a line at once, then now and then one, on the standard
    error; nothing before a stage is told."""

    def __init__(self, console: Console, now: Callable[[], float] = time.monotonic) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        left = TextColumn("left"), TimeRemainingColumn()
        self._is_terminal, self._now = console.is_terminal, now
        self._bars = Progress(*columns, *left, console=console, disable=not console.is_terminal)

    def stage(self, title: str) -> OnTrial:
        """What is told of one stage."""
        bar, said = self._bars.add_task(title, total=None), list[tuple[float, int]]()

        def tells(done: int, total: int, last: str) -> None:
            if not self._is_terminal:
                self._line(title, done, total, said)
            self._bars.start()
            self._bars.update(bar, completed=done, total=total, description=last[-60:] or title)

        return tells

    def _line(self, title: str, done: int, total: int, said: list[tuple[float, int]]) -> None:
        """Says how many are done, and once `FORESEEN` are, about how long the others take; `said` are those before."""
        at = self._now()
        if done == total or (said and (at - said[-1][0] < EVERY or done == said[0][1])):
            return
        said.append((at, done))
        (began, before), words = said[0], ""
        if done - before >= FORESEEN:
            left = (at - began) / (done - before) * (total - done)
            words = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        Console(stderr=True).print(Text(f"{done} of {total} {title}" + (words and f", {words} left")))

    def close(self) -> None:
        self._bars.stop()
