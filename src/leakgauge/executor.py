"""A Ray cluster that runs already, as a place for jobs. Ray is imported by the first call.

What a job needs is the same everywhere: each worker process compares the code of leakgauge and the version of torch
with the driver's before it takes a job, and `begin` what the results rest on.
"""

import hashlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import torch

from leakgauge import __version__
from leakgauge.errors import InputError, installed, require, said
from leakgauge.files import private_folder
from leakgauge.workers import Answer, Ground, Job, Jobs, Lost, LostJob, packed

TRIES = 4  # times a job is tried if its worker dies. A job that raises is not retried.
AHEAD = 2  # jobs in flight for each that the cluster can run at a time
HINT = "see `ray status`, and docs/how-to/sweeps"


@dataclass(frozen=True)
class RayCluster:
    """A cluster that was started by others; nothing is started or stopped."""

    address: str  # of its head (``host:6379``), or ``auto`` on one of its machines
    cpus: float = 1.0  # cpus, gpus: that each job declares; fractions are shares of a device.
    gpus: float = 0.0
    logs: Path | None = None  # folder for the whole text of what jobs raised or died of; `None` for none.
    elsewhere: ClassVar[bool] = True

    def run_all(self, jobs: Jobs[Job, Answer, Ground]) -> None:
        ray = self._connected()
        task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(_task())
        held = ray.put(packed((jobs.begin, jobs.ground), "--ray"))  # code of a notebook travels by value
        terms = {"leakgauge": __version__, "torch": torch.__version__, "code": code()}
        place, flying = (os.getcwd(), os.getcwd() in sys.path), set[Any]()

        def outcome(sent: Any, job: Job) -> Answer | Lost:
            try:
                told = ray.get(sent)
            except ray.exceptions.RayTaskError as error:  # nothing of the job's: the worker cannot take any
                raise InputError("ray", f"a worker is not usable ({said(error.cause)})", HINT) from error
            except ray.exceptions.RayError as error:
                late = "" if jobs.limit is None else f", or took longer than {jobs.limit:g} s"
                reason = f"its worker process ended{late}, in {TRIES} tries"
                self._log(job, error)
                again = f"run the same command again; finished {jobs.kept} are kept"
                return Lost(LostJob.DIED, InputError("ray", reason, again), reason)
            finally:
                flying.discard(sent)
            require(isinstance(told, bytes), "ray", told, "install the same everywhere; finished trials are kept")
            answer: Answer | Lost = cloudpickle.loads(told)
            if isinstance(answer, Lost):
                self._log(job, answer.error)
            return answer

        def send(job: Job) -> Future[Answer | Lost]:
            flying.add(sent := task.remote([held], cloudpickle.dumps(job), terms, place, jobs.limit))
            return threads.submit(outcome, sent, job)

        most = max(1, int(AHEAD * ray.cluster_resources().get("CPU", 1) / max(self.cpus, 1e-3)))
        with ThreadPoolExecutor(most) as threads:
            try:
                jobs.pass_through(send, most, TRIES)
            finally:
                for left in [*flying]:
                    ray.cancel(left, force=True)

    def _connected(self) -> Any:
        ray = installed("ray", "--ray", "needs Ray", "ray")
        if not ray.is_initialized():
            try:
                host, colon, port = self.address.removeprefix("ray://").rpartition(":")
                if colon:  # Ray itself asks for minutes; other addresses are Ray's to judge
                    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise InputError("--ray", f"no cluster answers at '{self.address}' ({reason})", HINT) from error
        return ray

    def _log(self, job: object, error: Exception) -> None:
        if self.logs is not None:
            name = hashlib.sha256(repr(job).encode()).hexdigest()[:16]
            (private_folder(self.logs) / f"{name}.log").write_text(f"{job!r}\n{said(error)}\n{error}\n", "utf-8")


_held = ""  # in a worker process: what it is prepared for


@cache
def code() -> str:
    """Hash of all modules of this package, by content."""
    root, whole = Path(__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        whole.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:12]


def _task() -> Callable[..., str | bytes]:
    """What runs on a worker, and says why it cannot or what became of the job. It travels by value, so that a worker
    with other code can say so."""

    def task(held: list[Any], job: bytes, terms: dict[str, str], place: tuple[str, bool], limit: float | None) -> Any:
        import os
        import socket
        import sys
        import threading

        import cloudpickle as pickle

        for name, value in (("OMP_NUM_THREADS", "1"), ("OMP_WAIT_POLICY", "passive")):
            os.environ.setdefault(name, value)
        where, importable = place
        if os.path.isdir(where):
            os.chdir(where)
        if importable and where not in sys.path:
            sys.path.append(where)
        try:
            import torch

            from leakgauge import __version__, executor, workers
        except ImportError as error:
            return f"the worker on {socket.gethostname()} lacks {error.name or error}"
        own = {"leakgauge": __version__, "torch": torch.__version__, "code": executor.code()}
        other = [f"{key} {own[key]}, the driver has {terms[key]}" for key in terms if own[key] != terms[key]]
        if other:
            return f"the worker on {socket.gethostname()} has other code ({'; '.join(other)})"
        failed, known = None, held[0].hex()
        if executor._held != known:
            import ray

            failed = workers.prepare(*pickle.loads(ray.get(held[0])))
            executor._held = "" if failed else known
        watch = threading.Timer(threading.TIMEOUT_MAX if limit is None else limit, os._exit, (75,))
        watch.daemon = True
        watch.start()
        try:
            return pickle.dumps(failed or workers.work(pickle.loads(job)))
        finally:
            watch.cancel()

    return task
