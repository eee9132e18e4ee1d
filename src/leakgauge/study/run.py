"""Runs a plan's trials in worker processes and stores each as it finishes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from leakgauge.compute import Compute
from leakgauge.errors import require
from leakgauge.observation import Reconstruction, Status
from leakgauge.study.contents import changed
from leakgauge.study.explaining.explained import Explained
from leakgauge.study.plan import Plan
from leakgauge.study.product import Key
from leakgauge.study.store import ANEW, Store
from leakgauge.study.tables import Asked
from leakgauge.study.trial import TrialResult, run_trial, trial_id
from leakgauge.workers import Loss, run_all

OnTrial = Callable[[int, int, str], None]
"""(finished, all, id of the last)."""

OnExplained = Callable[[Explained], None]
"""How much of the captured update the plan explains, before any trial runs."""


@dataclass(frozen=True)
class Work:
    """What a worker process needs to run any trial; the plan's classes are pickled by value where a notebook has
    them."""

    plan: bytes
    compute: Compute
    counts_only: bool
    explained: Explained | None = None


_work: tuple[Plan, Work] | None = None


def _begin(work: Work) -> None:
    """Makes the plan once per process."""
    global _work
    work.compute.apply()
    _work = (cloudpickle.loads(work.plan), work)


@dataclass(frozen=True)
class Job:
    """A trial to run; `lost` for one whose earlier tries gave no answer, and whose row says why."""

    key: Key
    lost: Reconstruction | None = None


def _run(job: Job) -> TrialResult:
    assert _work is not None
    plan, work = _work
    result = run_trial(plan, job.key, compute=work.compute, counts_only=work.counts_only, lost=job.lost)
    if work.explained is not None and not job.key.control:
        result.record["explained"] = work.explained.record
    return result


def environment(compute: Compute) -> dict[str, Any]:
    """What a reader needs to repeat the numbers."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.system(),
        "machine": platform.machine(),
        "threads_per_trial": compute.threads,
        "device": compute.device,
    }


def run(
    plan: Plan,
    folder: Path,
    *,
    workers: int = 1,
    compute: Compute = Compute(),
    counts_only: bool = False,
    on_trial: OnTrial | None = None,
    anew: bool = False,
    on_explained: OnExplained | None = None,
) -> Store:
    """Runs what is not yet finished. Killed at any moment and run again, it ends with the same results.

    Args:
        anew: sets results of another plan or other contents aside and begins again.

    Raises:
        InputError: the folder belongs to another audit or holds results of other contents, another audit writes into
            it, the disk is full, an input turned out bad, or what the results rest on changed meanwhile; trials
            finished before are kept.
    """
    keys = {trial_id(plan, key): key for key in plan.trials()}
    before = plan.contents()
    asked = Asked(
        digest=plan.digest,
        name=plan.name,
        config=plan.config,
        environment=environment(compute),
        contents=before,
        planned=keys,
        counts_only=counts_only,
    )
    store = Store.create(folder, asked, anew=anew)
    try:
        _run_left(plan, keys, store, workers, compute, counts_only, on_trial, on_explained)
        different = changed(before, plan.contents())
        require(not different, "output", f"{', '.join(different)} changed while the audit ran", ANEW)
    except BaseException:
        store.close()
        raise
    return store


def _run_left(
    plan: Plan,
    keys: Mapping[str, Key],
    store: Store,
    workers: int,
    compute: Compute,
    counts_only: bool,
    on_trial: OnTrial | None,
    on_explained: OnExplained | None,
) -> None:
    done = store.finished() & set(keys)
    left = {name: key for name, key in keys.items() if name not in done}
    if on_trial is not None:
        on_trial(len(done), len(keys), "")
    if not left:
        return
    explained = plan.explained()
    if explained is not None and on_explained is not None:
        on_explained(explained)
    # A folder begun without images stays without, whatever this call says.
    work = Work(cloudpickle.dumps(plan), compute, counts_only or store.audit.counts_only, explained)

    def keep(result: TrialResult) -> None:
        store.add(result)
        done.add(result.id)
        if on_trial is not None:
            on_trial(len(done), len(keys), result.id)

    lost: list[Job] = []

    def note(job: Job, loss: Loss, reason: str) -> None:
        status = Status.FAILED if loss is Loss.RAISED else Status.DIED
        lost.append(Job(job.key, Reconstruction(None, None, status, f"the trial gave no answer: {reason}")))

    jobs, limit = [Job(key) for key in left.values()], plan.trial_seconds
    run_all(_run, jobs, keep, workers=workers, begin=_begin, ground=work, kept="trials", limit=limit, on_lost=note)
    if lost:
        run_all(_run, lost, keep, workers=workers, begin=_begin, ground=work, kept="trials")
