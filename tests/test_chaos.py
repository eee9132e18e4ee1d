"""Audits, frontiers and trainings that are killed, starved and doubled: nothing is lost or there twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from chaos import PATIENCE, Subject, audit, chaos, frontier, training
from promises import Row, keep
from study.plans import plan_file


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("make", [training, audit, frontier], ids=lambda f: f.__name__)
def test_disturbed_at_random_nothing_is_lost_and_nothing_is_there_twice(
    make: Callable[[Path], Subject], tmp_path: Path
) -> None:
    """`LEAKGAUGE_CHAOS` is the number of disturbances that strike, of several in each run."""
    points = int(os.environ.get("LEAKGAUGE_CHAOS", "60"))
    count = chaos(make, tmp_path / "runs", points, on_point=print)
    name = f"a run of {make.__name__}"
    hits = ", ".join(f"{way} {n}" for way, n in sorted(count.hits.items()))
    struck = sum(count.hits.values())
    tried = f"{struck} disturbances in {count.runs} runs, {count.kills} kills ({hits})"
    slowest = f"slowest end {count.slowest:.0f} s"
    rows = [
        Row(f"{name} that was disturbed and run again gives the undisturbed result", tried, count.lost, slowest),
        Row(f"{name} stores no trial twice", f"after each of {struck} disturbances", count.twice),
        Row(f"{name} ends in one line, never in a traceback", "the same", count.foreign),
        Row(f"{name} ends within {PATIENCE:g} s", "the same", count.hung),
    ]
    keep(f"chaos-{make.__name__}", "tests/test_chaos.py", rows)
    assert (count.lost, count.twice, count.foreign, count.hung) == (0, 0, 0, 0), count.said
    assert struck >= points


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 3])
def test_ctrl_c_however_often_is_one_line_and_leaves_nothing_behind(times: int, tmp_path: Path) -> None:
    """No traceback, no process, and no remark of Python's about semaphores."""
    plan, out = plan_file(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "leakgauge", "audit", str(plan), "-o", str(out), "--workers", "2"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores Ctrl-C
    )
    until = time.monotonic() + 240
    while not psutil.Process(process.pid).children() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    there = psutil.Process(process.pid).children(recursive=True)
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    said = process.communicate(timeout=240)[1]
    assert process.returncode == 130
    assert [line for line in said.splitlines() if line] == [
        "leakgauge: stopped; run the same command to go on where it was"
    ]
    assert not psutil.wait_procs(there, timeout=60)[1]
