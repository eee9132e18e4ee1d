"""Where jobs run, and the processes of this machine: independent jobs, each answer handed over as soon as it is there.

Workers may come and go: a job whose worker ends is tried again elsewhere.
"""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from io import BytesIO
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import cloudpickle
from torch import nn
from torch.nn.utils import parametrize

from leakgauge.errors import InputError, refusing, require, said

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Ground = TypeVar("Ground")

ATTEMPTS = 2  # a job whose worker dies, or that takes too long, is tried again once
STARTING = 600.0  # seconds that a process may take before it starts on a job, beside the job's own

_run: Callable[[Any], Any] | None = None  # in a worker process: what runs a job


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Parametrised layers, whose class is made at run time, travel by value like anything of a notebook."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module) and parametrize.is_parametrized(obj):
            return type(obj).__new__, (type(obj),), vars(obj)
        return super().reducer_override(obj)


def packed(held: object, name: str) -> bytes:
    """Bytes of what goes to worker processes, for `pickle.loads`; `name` says what it is. Raises `InputError` where
    something in it belongs to this process: a lock, an open file, a generator."""
    into = BytesIO()
    hint = "name it as `module:function`, which each worker calls for one of its own"
    with refusing(name, "cannot be sent to the processes that run it", hint):
        _Pickler(into).dump(held)
    return into.getvalue()


class LostJob(Enum):
    """Why a job has no answer."""

    DIED = "died"
    LATE = "late"
    RAISED = "raised"


@dataclass(frozen=True)
class Lost:
    """Why a job has none; `error` is for a caller who does not ask."""

    loss: LostJob
    error: Exception
    reason: str


@dataclass(frozen=True)
class Jobs(Generic[Job, Answer, Ground]):
    """Jobs, and what becomes of their answers."""

    each: Iterable[Job]  # is asked for when a process is free for it
    on_answer: Callable[[Answer], None]  # gets the answers in the order in which they come
    _: KW_ONLY
    # called with `ground` once in each process, gives what runs its jobs. It is of a module that can be imported, as
    # all that crosses over to a process.
    begin: Callable[[Ground], Callable[[Job], Answer]]
    ground: Ground
    kept: str  # what the caller keeps of the answers, for the message when a process dies
    limit: float | None = None  # seconds that a job may take; `None` for any time.
    # gets a job that has no answer, and why; without it that is an error.
    on_lost: Callable[[Job, LostJob, str], None] | None = None

    def pass_through(self, send: Callable[[Job], Future[Answer | Lost]], most: int, attempts: int) -> None:
        """Sends each job, so many at a time, and hands its answer over; one that a worker lost is sent again."""
        fresh, again = iter(self.each), deque[tuple[Job, int]]()
        flying: dict[Future[Answer | Lost], tuple[Job, int]] = {}

        def following() -> tuple[Job, int] | None:
            return again.popleft() if again else next(((job, 1) for job in fresh), None)

        while True:
            while len(flying) < most and (turn := following()) is not None:
                flying[send(turn[0])] = turn
            if not flying:
                return
            for done in wait(flying, return_when=FIRST_COMPLETED).done:
                (job, attempt), outcome = flying.pop(done), done.result()
                if not isinstance(outcome, Lost):
                    self.on_answer(outcome)
                    continue
                raised = outcome.loss is LostJob.RAISED
                if not raised and attempt < attempts:
                    again.append((job, attempt + 1))
                elif self.on_lost is None or (raised and isinstance(outcome.error, InputError)):
                    raise outcome.error
                else:
                    self.on_lost(job, outcome.loss, outcome.reason)


@runtime_checkable
class Executor(Protocol):
    """Where jobs run: `LocalPool` or `Here`, `leakgauge.executor.RayCluster` `elsewhere`, where machines may hold
    other data."""

    elsewhere: ClassVar[bool]

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        """A job whose worker dies, or that takes longer than `limit`, gets another worker and is tried again. Raises
        `InputError` where a worker died or was late and there is no `on_lost`; or `begin`, a job or `on_answer` raised
        it. Jobs that have not begun are dropped."""


@dataclass(frozen=True)
class LocalPool:
    """Processes of this machine, so many at a time. A job is tried twice."""

    workers: int = 1
    elsewhere: ClassVar[bool] = False

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        hint = "put the call under `if __name__ == '__main__':`, or into a module of its own"
        require(_run is None, "audit", "is called again by a module that a worker imports", hint)
        with ThreadPoolExecutor(self.workers) as threads, closing(_Processes(jobs)) as processes:
            jobs.pass_through(lambda job: threads.submit(processes.answer, job), self.workers, ATTEMPTS)


@dataclass(frozen=True)
class Here:
    """This process, one job after the other, for what belongs to it: its end is theirs, and nothing ends a late one."""

    elsewhere: ClassVar[bool] = False

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        run = jobs.begin(jobs.ground)

        def answered(job: Job) -> Future[Answer | Lost]:
            done = Future[Answer | Lost]()
            try:
                done.set_result(run(job))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the caller is told
                done.set_result(_raised(error))
            return done

        jobs.pass_through(answered, 1, 1)


@dataclass(frozen=True, eq=False)
class _Processes(Generic[Job, Answer, Ground]):
    """Worker processes, each in a pool of its own: the end of one touches no other's job."""

    jobs: Jobs[Job, Answer, Ground]
    all: dict[ProcessPoolExecutor, BaseProcess] = field(default_factory=dict)
    idle: list[ProcessPoolExecutor] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    closed: threading.Event = field(default_factory=threading.Event)

    def answer(self, job: Job) -> Answer | Lost:
        jobs, failed = self.jobs, None
        with self.lock:
            fresh = not self.idle
            pool = self._start() if fresh else self.idle.pop()
        try:
            if fresh:
                failed = pool.submit(prepare, jobs.begin, jobs.ground).result(STARTING)
            outcome: Answer | Lost = failed or pool.submit(work, job).result(jobs.limit)
        except (BrokenProcessPool, TimeoutError) as error:
            code, loss, reason = self.end(pool), LostJob.LATE, f"no answer within {jobs.limit or STARTING:g} s"
            if isinstance(error, BrokenProcessPool):
                loss, reason = LostJob.DIED, f"a worker process died ({_ending(code)})"
            reason += f", in {ATTEMPTS} tries"
            hint = f"run again with fewer --workers; finished {jobs.kept} are kept"
            return Lost(loss, InputError("workers", reason, hint), reason)
        except Exception as error:  # noqa: BLE001 - it could not be pickled
            outcome = _raised(error)
        if failed is None:
            self.idle.append(pool)
        return outcome

    def _start(self) -> ProcessPoolExecutor:
        # Forked from a server that has imported the jobs' module and what torch imports at a first gradient, which
        # takes a second, but started no thread: they share its memory.
        require(not self.closed.is_set(), "workers", "are stopped", "run again")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([self.jobs.begin.__module__, "torch._dynamo"])
        pool, before = ProcessPoolExecutor(1, context, _obey), {*multiprocessing.active_children()}
        with _main_stays():
            pool.submit(int)
        (self.all[pool],) = {*multiprocessing.active_children()} - before
        return pool

    def end(self, pool: ProcessPoolExecutor) -> int | None:
        """Its exit code; `None` where it has ended before."""
        with self.lock:
            if (process := self.all.pop(pool, None)) is None:
                return None
            process.kill()
            pool.shutdown()
        return process.exitcode

    def close(self) -> None:
        self.closed.set()
        with self.lock:
            left = [*self.all]
        for pool in left:
            self.end(pool)


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
    if code is None or code >= 0:
        return f"exit code {code}"
    return "killed: out of memory?" if code == -signal.SIGKILL else f"signal {-code}"


def _obey() -> None:
    """Begins a worker process: it ends with the main one, which alone decides about Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def prepare(begin: Callable[[Any], Callable[[Any], Any]], ground: Any) -> Lost | None:
    """In a worker process, before its first job; says what went wrong."""
    global _run
    try:
        _run = begin(ground)
    except BaseException as error:  # noqa: BLE001 - it is the caller's: sent there
        return _raised(error)
    return None


def work(job: Any) -> Any | Lost:
    """In a worker process, once it is prepared: a job's answer."""
    assert _run is not None
    try:
        return _run(job)
    except BaseException as error:  # noqa: BLE001 - anybody's code may end a job, never the process
        return _raised(error)


def _raised(error: BaseException) -> Lost:
    """As it can be sent: an error that cannot be pickled there and back becomes a plain one, and so does a call of
    sys.exit, which would end the main process as if all were well."""
    sent: Exception = RuntimeError(said(error))
    with suppress(BaseException):  # whatever somebody's error class does
        pickle.loads(pickle.dumps(error))
        sent = error if isinstance(error, Exception) else sent
    return Lost(LostJob.RAISED, sent, said(error))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
