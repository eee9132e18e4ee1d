"""Jobs of the standard library, so that a worker process can import them."""

from __future__ import annotations

import math
import multiprocessing
import os
import time

import pytest

from leakgauge.errors import InputError
from leakgauge.workers import run_all


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_every_job_is_answered_once(workers: int) -> None:
    found: list[float] = []
    run_all(math.sqrt, [1.0, 4.0, 9.0], found.append, workers=workers, begin=repr, ground=None, kept="roots")
    assert sorted(found) == [1, 2, 3]


def test_a_process_that_dies_is_one_line_and_what_came_before_stays() -> None:
    found: list[None] = []
    with pytest.raises(InputError, match="a worker process died") as error:
        run_all(os._exit, [1], found.append, workers=1, begin=repr, ground=None, kept="trials")
    assert "finished trials are kept" in str(error.value)
    assert found == []


def test_what_a_job_raises_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        run_all(math.sqrt, [-1.0], lambda _: None, workers=1, begin=repr, ground=None, kept="roots")


def test_no_process_outlives_an_interruption() -> None:
    """Ctrl-C reaches the main process while it keeps an answer; a job of an hour does not hold it."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(time.sleep, [0.0, 3600.0], interrupted, workers=2, begin=repr, ground=None, kept="waits")
    for child in multiprocessing.active_children():  # killed, and about to be gone
        child.join(10)
    assert not multiprocessing.active_children()
