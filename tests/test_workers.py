"""Jobs of the standard library, so that a worker process can import them."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.parametrizations import orthogonal, spectral_norm, weight_norm

from leakgauge.errors import InputError
from leakgauge.workers import Executor, Here, Jobs, LocalPool, LostJob, packed


def _itself(run: Any) -> Any:
    return run


def _called(job: bytes) -> list[list[float]]:
    net, x = pickle.loads(job)
    answer: list[list[float]] = net(x).tolist()
    return answer


@pytest.mark.parametrize("kind", [weight_norm, spectral_norm, orthogonal])
def test_a_parametrised_layer_is_itself_in_a_worker(kind: Any) -> None:
    x, net = torch.rand(3, 8), torch.nn.Sequential(kind(torch.nn.Linear(8, 4))).eval()
    found: list[Any] = []
    LocalPool(1).run_all(Jobs([packed((net, x), "model")], found.append, begin=_itself, ground=_called, kept="answers"))
    assert torch.equal(torch.tensor(found[0]), net(x))


def test_what_belongs_to_this_process_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"cannot be sent .*lock.*`module:function`"):
        packed({"model": [threading.Lock()]}, "model")


@pytest.mark.parametrize("where", [Here(), LocalPool(1), LocalPool(2), LocalPool(9)])
def test_every_job_is_answered_once(where: Executor) -> None:
    found: list[float] = []
    where.run_all(Jobs([1.0, 4.0, 9.0], found.append, begin=_itself, ground=math.sqrt, kept="roots"))
    assert sorted(found) == [1, 2, 3]


def test_a_process_that_dies_is_one_line_and_what_came_before_stays() -> None:
    found: list[None] = []
    with pytest.raises(InputError, match="a worker process died") as error:
        LocalPool(1).run_all(Jobs([1], found.append, begin=_itself, ground=os._exit, kept="trials"))
    assert "finished trials are kept" in str(error.value)
    assert found == []


def test_what_a_job_raises_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        LocalPool(1).run_all(Jobs([-1.0], lambda _: None, begin=_itself, ground=math.sqrt, kept="roots"))


def test_no_process_outlives_an_interruption() -> None:
    """Ctrl-C reaches the main process while it keeps an answer; a job of an hour does not hold it."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalPool(2).run_all(Jobs([0.0, 3600.0], interrupted, begin=_itself, ground=time.sleep, kept="waits"))
    for child in multiprocessing.active_children():  # killed, and about to be gone
        child.join(10)
    assert not multiprocessing.active_children()


def _sqrt_or_worse(job: float) -> float:
    """Exits for a negative number, and waits for ever on infinity."""
    if job < 0:
        sys.exit(0)
    if math.isinf(job):
        time.sleep(3600)
    return math.sqrt(job)


def _is_imported(job: str) -> bool:
    return job in sys.modules


def test_a_process_begins_with_what_its_first_gradient_imports() -> None:
    found: list[bool] = []
    LocalPool(1).run_all(Jobs(["torch._dynamo"], found.append, begin=_itself, ground=_is_imported, kept="names"))
    assert found == [True]


def _dies_once(job: str) -> str:
    if not os.path.exists(job):
        with open(job, "w"):
            os.kill(os.getpid(), signal.SIGKILL)
    return job


def _lost(run: Any, jobs: list[Any], workers: int, **options: Any) -> tuple[list[Any], list[tuple[Any, LostJob, str]]]:
    found: list[Any] = []
    lost: list[tuple[Any, LostJob, str]] = []
    tell = lambda *told: lost.append(told)  # noqa: E731
    where = LocalPool(workers) if workers else Here()
    where.run_all(Jobs(jobs, found.append, begin=_itself, ground=run, kept="jobs", on_lost=tell, **options))
    return found, lost


def test_a_process_that_dies_is_tried_once_more(tmp_path: Path) -> None:
    job = str(tmp_path / "seen")
    assert _lost(_dies_once, [job], workers=1) == ([job], [])


def test_jobs_without_an_answer_are_told_and_the_others_go_on() -> None:
    found, lost = _lost(_sqrt_or_worse, [1.0, -1.0, 4.0, math.inf, 9.0], workers=2, limit=1)
    assert sorted(found) == [1, 2, 3]
    assert {job: loss for job, loss, _ in lost} == {-1.0: LostJob.RAISED, math.inf: LostJob.LATE}
    assert [reason for _, loss, reason in lost if loss is LostJob.LATE] == ["no answer within 1 s, in 2 tries"]
    assert not multiprocessing.active_children()


def test_what_a_job_raises_here_is_told_as_from_a_process() -> None:
    assert _lost(_sqrt_or_worse, [1.0, -1.0, 4.0], workers=0) == _lost(_sqrt_or_worse, [1.0, -1.0, 4.0], workers=1)
    with pytest.raises(KeyboardInterrupt):
        Here().run_all(Jobs([0], repr, begin=_itself, ground=_interrupted, kept="jobs"))


def _interrupted(_: int) -> None:
    raise KeyboardInterrupt


def test_a_job_that_kills_its_process_is_told() -> None:
    found, lost = _lost(os._exit, [3], workers=1)
    assert found == []
    assert [(job, loss) for job, loss, _ in lost] == [(3, LostJob.DIED)]
    assert "a worker process died (exit code 3), in 2 tries" in lost[0][2]


def test_somebodys_exit_is_no_good_end() -> None:
    with pytest.raises(RuntimeError, match="SystemExit: 0"):
        LocalPool(1).run_all(Jobs([0], repr, begin=_itself, ground=sys.exit, kept="jobs"))
