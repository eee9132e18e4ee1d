"""Runs a plan's trials in worker processes and stores each as it finishes."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from leakgauge.audit.plan import Key, Plan
from leakgauge.audit.store import Store
from leakgauge.audit.trial import TrialResult, run_trial, trial_id
from leakgauge.compute import Compute
from leakgauge.errors import InputError

OnTrial = Callable[[int, int, str], None]
"""(finished, all, id of the last)."""


@dataclass(frozen=True)
class Work:
    """What a worker process needs to run any trial of a plan."""

    raw: dict[str, Any]
    compute: Compute
    counts_only: bool


_work: tuple[Plan, Work] | None = None


def _begin(work: Work) -> None:
    """Resolves the plan once per process, and ends the process with its parent."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    work.compute.apply()
    _work = (Plan(work.raw), work)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    # A pool's workers outlive a parent that is killed: they hold their own queue open.
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run(key: Key) -> TrialResult:
    assert _work is not None
    plan, work = _work
    return run_trial(plan, key, compute=work.compute, counts_only=work.counts_only)


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
    compute: Compute = Compute(),  # noqa: B008 - frozen
    counts_only: bool = False,
    on_trial: OnTrial | None = None,
) -> Store:
    """Runs what is not yet finished. Killed at any moment and run again, it ends with the same results.

    Raises:
        InputError: the folder belongs to another audit, the disk is full, or an input turned out bad;
            trials finished before are kept.
    """
    store = Store.create(
        folder,
        digest=plan.digest,
        name=plan.config.name,
        config=plan.raw,
        environment=environment(compute),
        counts_only=counts_only,
    )
    keys = {trial_id(plan, key): key for key in plan.trials()}
    done = store.finished() & set(keys)
    left = {name: key for name, key in keys.items() if name not in done}
    if on_trial is not None:
        on_trial(len(done), len(keys), "")
    if not left:
        return store
    # A folder begun without images stays without, whatever this call says.
    work = Work(plan.raw, compute, counts_only or store.audit.counts_only)
    # Forked from a server that has imported torch but started no thread: workers share its memory.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["leakgauge.audit.trial"])
    with ProcessPoolExecutor(min(workers, len(left)), mp_context=context, initializer=_begin, initargs=(work,)) as pool:
        pending: set[Future[TrialResult]] = {pool.submit(_run, key) for key in left.values()}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    result = future.result()
                    store.add(result)
                    done.add(result.id)
                    if on_trial is not None:
                        on_trial(len(done), len(keys), result.id)
        except BrokenProcessPool as error:
            raise InputError(
                "workers",
                "a worker process died (out of memory?)",
                "run again with fewer --workers; finished trials are kept",
            ) from error
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return store
