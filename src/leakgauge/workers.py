"""Worker processes: independent jobs, each answer handed over as soon as it is there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import TypeVar

from leakgauge.errors import InputError

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Ground = TypeVar("Ground")


def run_all(
    run: Callable[[Job], Answer],
    jobs: Sequence[Job],
    on_answer: Callable[[Answer], None],
    *,
    workers: int,
    begin: Callable[[Ground], None],
    ground: Ground,
    kept: str,
) -> None:
    """Runs the jobs; answers go to `on_answer`, in the order in which they come.

    Args:
        run: of a module that can be imported, as all that crosses over to a process.
        jobs: at least one.
        begin: called with `ground` once in each process, before its first job.
        kept: what the caller keeps of the answers, for the message when a process dies.

    Raises:
        InputError: a process died, or a job or `on_answer` raised it. Jobs that have not begun are dropped.
    """
    # Forked from a server that has imported the jobs' module, and torch, but started no thread: they share its memory.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([run.__module__])
    count = min(workers, len(jobs))
    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(begin, ground)) as pool:
        pending: set[Future[Answer]] = {pool.submit(run, job) for job in jobs}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    on_answer(future.result())
        except BrokenProcessPool as error:
            raise InputError(
                "workers",
                "a worker process died (out of memory?)",
                f"run again with fewer --workers; finished {kept} are kept",
            ) from error
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin(begin: Callable[[Ground], None], ground: Ground) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    begin(ground)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    # A pool's workers outlive a parent that is killed: they hold their own queue open.
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
