"""Where jobs run, and the processes of this machine: independent jobs, each answer handed over as soon as it is there.

Workers may come and go: a job whose worker ends is tried again elsewhere.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from leakgauge.errors import InputError, require, said

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Ground = TypeVar("Ground")

ATTEMPTS = 2
"""A job whose worker dies, or that takes too long, is tried again once."""

STARTING = 600.0
"""Seconds that a process may take before it starts on a job, beside the job's own."""

STALLED = 60.0
"""Seconds in which a worker that has begun to send an answer must go on: one that is stopped in the middle is dead."""

LOOKS = 5.0
"""Seconds between two looks at whether a worker was stopped (SIGSTOP): it is told to go on, for nobody else would."""


_serves = False
"""Whether this process is a worker."""


class LostJob(Enum):
    """Why a job has no answer."""

    DIED = "died"
    LATE = "late"
    RAISED = "raised"


@dataclass(frozen=True)
class _Raised:
    """What a job raised instead of giving an answer."""

    error: Exception
    reason: str


class _Begun:
    """A worker has read its job, and starts."""


@dataclass(frozen=True)
class _Worker(Generic[Job, Answer]):
    process: ForkServerProcess
    pipe: connection.Connection


@dataclass
class _Turn(Generic[Job]):
    """A job at a worker: which try it is, and when it must end (`time.monotonic`)."""

    job: Job
    attempt: int
    deadline: float | None


@dataclass
class _Pool(Generic[Job, Answer, Ground]):
    context: ForkServerContext
    jobs: Jobs[Job, Answer, Ground]
    idle: list[_Worker[Job, Answer]] = field(default_factory=list)
    busy: dict[_Worker[Job, Answer], _Turn[Job]] = field(default_factory=dict)

    def give(self, job: Job, attempt: int) -> None:
        limit = self.jobs.limit
        worker = self.idle.pop() if self.idle else self._start()
        self.busy[worker] = _Turn(job, attempt, None if limit is None else time.monotonic() + STARTING + limit)
        with suppress(OSError):  # it died while it waited: `heard` finds it
            worker.pipe.send(job)

    def _start(self) -> _Worker[Job, Answer]:
        ours, theirs = self.context.Pipe()
        with socket.socket(fileno=os.dup(ours.fileno())) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(STALLED), 0))
        jobs = self.jobs
        process = self.context.Process(target=_serve, args=(theirs, jobs.run, jobs.begin, jobs.ground), daemon=False)
        with _main_stays():
            process.start()
        theirs.close()
        return _Worker(process, ours)

    def heard(self, wait: float) -> list[_Worker[Job, Answer]]:
        """Workers that have something to say, or have died."""
        where: dict[Any, _Worker[Job, Answer]] = {x: w for w in self.busy for x in (w.pipe, w.process.sentinel)}
        return list({id(w): w for w in (where[x] for x in connection.wait(list(where), wait))}.values())

    def wake(self) -> None:
        """Workers that somebody stopped go on. Where they cannot be told apart (no ``/proc``), nothing happens."""
        for pid in [w.process.pid for w in self.busy if w.process.pid]:
            with suppress(OSError):
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                    os.kill(pid, signal.SIGCONT)

    def stop(self, worker: _Worker[Job, Answer]) -> None:
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        worker.process.close()

    def close(self) -> None:
        for worker in (*self.idle, *self.busy):
            self.stop(worker)


@dataclass(frozen=True)
class Jobs(Generic[Job, Answer, Ground]):
    """Jobs, and what becomes of their answers.

    Attributes:
        run: of a module that can be imported, as all that crosses over to a process.
        each: is asked for when a process is free for it.
        on_answer: gets the answers in the order in which they come.
        begin: called with `ground` once in each process, before its first job.
        kept: what the caller keeps of the answers, for the message when a process dies.
        limit: seconds that a job may take; `None` for any time.
        on_lost: gets a job that has no answer, and why; without it that is an error.
    """

    run: Callable[[Job], Answer]
    each: Iterable[Job]
    on_answer: Callable[[Answer], None]
    _: KW_ONLY
    begin: Callable[[Ground], None]
    ground: Ground
    kept: str
    limit: float | None = None
    on_lost: Callable[[Job, LostJob, str], None] | None = None


@runtime_checkable
class Executor(Protocol):
    """Where jobs run: `LocalPool` here, `leakgauge.executor.RayCluster` on many machines.

    Attributes:
        elsewhere: whether on machines that may hold other data.
    """

    elsewhere: ClassVar[bool]

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        """A job whose worker dies, or that takes longer than `limit`, gets another worker and is tried again.

        Raises:
            InputError: a worker died or was late and there is no `on_lost`; or `begin`, a job or `on_answer` raised
                it. Jobs that have not begun are dropped.
        """


@dataclass(frozen=True)
class LocalPool:
    """Processes of this machine, so many at a time. A job is tried twice."""

    workers: int = 1
    elsewhere: ClassVar[bool] = False

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        """See `Executor`."""
        # Forked from a server that has imported the jobs' module and what torch imports at a first gradient, which
        # takes a second, but started no thread: they share its memory.
        hint = "put the call under `if __name__ == '__main__':`, or into a module of its own"
        require(not _serves, "audit", "is called again by a module that a worker imports", hint)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([jobs.run.__module__, "torch._dynamo"])
        pool: _Pool[Job, Answer, Ground] = _Pool(context, jobs)
        limit, fresh, again = jobs.limit, iter(jobs.each), deque[tuple[Job, int]]()

        def following() -> tuple[Job, int] | None:
            return again.popleft() if again else next(((job, 1) for job in fresh), None)

        def lost(turn: _Turn[Job], loss: LostJob, reason: str) -> None:
            if turn.attempt < ATTEMPTS:
                again.append((turn.job, turn.attempt + 1))
            elif jobs.on_lost is not None:
                jobs.on_lost(turn.job, loss, f"{reason}, in {ATTEMPTS} tries")
            else:
                hint = f"run again with fewer --workers; finished {jobs.kept} are kept"
                raise InputError("workers", f"{reason}, in {ATTEMPTS} tries", hint)

        try:
            while True:
                while len(pool.busy) < self.workers and (turn := following()) is not None:
                    pool.give(*turn)
                if not pool.busy:
                    return
                ends = [turn.deadline for turn in pool.busy.values() if turn.deadline is not None]
                there = pool.heard(min(LOOKS, max(0.0, min(ends) - time.monotonic())) if ends else LOOKS)
                pool.wake()
                for worker in there:
                    try:
                        answer = worker.pipe.recv() if worker.pipe.poll() else None
                    except (EOFError, OSError, pickle.UnpicklingError):
                        answer = None
                    if isinstance(answer, _Begun):
                        pool.busy[worker].deadline = None if limit is None else time.monotonic() + limit
                        continue
                    ended = pool.busy.pop(worker)
                    if answer is None:
                        worker.process.join(1)
                        code = worker.process.exitcode
                        pool.stop(worker)
                        lost(ended, LostJob.DIED, f"a worker process died ({_ending(code)})")
                        continue
                    pool.idle.append(worker)
                    (found,) = answer
                    if not isinstance(found, _Raised):
                        jobs.on_answer(found)
                    elif jobs.on_lost is None or isinstance(found.error, InputError):
                        raise found.error
                    else:
                        jobs.on_lost(ended.job, LostJob.RAISED, found.reason)
                late = [w for w, t in pool.busy.items() if t.deadline is not None and t.deadline <= time.monotonic()]
                for worker in late:
                    ended = pool.busy.pop(worker)
                    pool.stop(worker)
                    lost(ended, LostJob.LATE, f"no answer within {limit:g} s")
        finally:
            pool.close()


@contextmanager
def _main_stays() -> Iterator[None]:
    """A process that starts in this block does not run the user's script again, as Python would have it: a job and its
    ground are of modules that can be imported, or pickled by value. So a script needs no ``if __name__`` to call us."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    vars(main)["__spec__"] = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        vars(main).update(hidden)


def _ending(code: int | None) -> str:
    if code is None:
        return "stopped while it sent its answer"
    if code == -signal.SIGKILL:
        return "killed: out of memory?"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _serve(
    pipe: connection.Connection, run: Callable[[Job], Answer], begin: Callable[[Ground], None], ground: Ground
) -> None:
    global _serves
    _serves = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides
    threading.Thread(target=_die_with_parent, daemon=True).start()
    problem: _Raised | None = None
    try:
        begin(ground)
    except BaseException as error:  # noqa: BLE001 - it is the caller's: sent there
        problem = _raised(error)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        answer: Any = problem
        if problem is None:
            try:
                pipe.send(_Begun())
                answer = run(job)
            except BaseException as error:  # noqa: BLE001 - anybody's code may end a job, never the process
                answer = _raised(error)
        try:
            try:
                pipe.send((answer,))
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                pipe.send((_raised(error),))
        except OSError:  # the main process was stopped, and no longer listens
            return


def _raised(error: BaseException) -> _Raised:
    """As it can be sent: an error that cannot be pickled there and back becomes a plain one, and so does a call of
    sys.exit, which would end the main process as if all were well."""
    reason = said(error)
    try:
        pickle.loads(pickle.dumps(error))
    except BaseException:  # noqa: BLE001 - whatever somebody's error class does
        return _Raised(RuntimeError(reason), reason)
    return _Raised(error if isinstance(error, Exception) else RuntimeError(reason), reason)


def _die_with_parent() -> None:
    # A pool's workers outlive a parent that is killed: they hold their own queue open.
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
