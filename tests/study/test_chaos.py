"""Audits that are killed, stopped and starved at many points: no trial is lost, none is there twice."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from leakgauge.study.store import FILE
from study.plans import tiny

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
WAYS = ("kill the group", "kill a worker", "stop a worker", "full disk", "two writers")


def plan_file(folder: Path) -> Path:
    """Some forty small trials on records of numbers, each with a time limit."""
    x = np.random.default_rng(0).random((60, 1, 12), dtype=np.float32)
    np.savez(folder / "x.npz", x=x, y=np.arange(60) % 3)
    raw = tiny(
        model={"mlp": {"hidden": [6]}},
        data={"source": f"npz:{folder / 'x.npz'}", "batches": 20},
        defenses=["none"],
        attacks=["closed-form", {"inverting-gradients": {"steps": 20}}],
        gallery=5,
        budget={"trial_seconds": 20},
    )
    (folder / "plan.yaml").write_text(yaml.safe_dump(raw))
    return folder / "plan.yaml"


def start(path: Path, out: Path, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leakgauge", "audit", str(path), "-o", str(out), "--workers", "2"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, start_new_session=True, **options
    )


def stored(out: Path) -> list[str]:
    """Ids of the trials in a store, twice if they are there twice."""
    if not (out / FILE).exists():
        return []
    try:
        rows = sqlite3.connect(out / FILE, timeout=30).execute("select id from trials").fetchall()
    except sqlite3.OperationalError:
        return []
    return [row[0] for row in rows]


def stripped(report: Any) -> Any:
    if isinstance(report, dict):
        return {k: stripped(v) for k, v in report.items() if k not in ("seconds", "created_at")}
    return [stripped(v) for v in report] if isinstance(report, list) else report


def disturb(way: str, at: int, path: Path, out: Path) -> tuple[bool, str]:
    """Runs until `at` trials are stored, then does it. Whether it hit a running audit, and what that said."""
    limit = 40_000 + 3_000 * at

    def starve() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = start(path, out, preexec_fn=starve) if way == "full disk" else start(path, out)
    while way != "full disk" and process.poll() is None and len(stored(out)) < at:
        time.sleep(0.01)
    hit = process.poll() is None or way == "full disk"
    if hit and way == "kill the group":
        os.killpg(process.pid, signal.SIGKILL)
    elif hit and way in ("kill a worker", "stop a worker"):
        workers = [p for p in psutil.Process(process.pid).children(recursive=True) if not p.children()]
        if workers:
            workers[-1].send_signal(signal.SIGKILL if way == "kill a worker" else signal.SIGSTOP)
    elif hit and way == "two writers":
        second = start(path, out)
        _, said = second.communicate(timeout=300)
        assert second.returncode in (0, 2), said
        assert second.returncode == 0 or "another audit is writing" in said, said
    _, said = process.communicate(timeout=600)
    return hit, said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_at_fifty_points_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    points, dice = int(os.environ.get("LEAKGAUGE_CHAOS", "50")), random.Random(0)
    path = plan_file(tmp_path)
    whole = start(path, tmp_path / "whole")
    assert whole.communicate(timeout=600)[1] == ""
    good = stripped(json.loads((tmp_path / "whole" / "report.json").read_text()))
    hits: Counter[str] = Counter()
    lost = twice = odd = 0
    for point in range(points):
        way, out = WAYS[point % len(WAYS)], tmp_path / f"out-{point}"
        before: set[str] = set()
        for at in sorted(dice.sample(range(40), 2)):
            hit, said = disturb(way, at, path, out)
            hits[way] += hit
            odd += "Traceback" in said
            now = stored(out)
            twice += len(now) - len(set(now))
            lost += len(before - set(now))
            before = set(now)
        again = start(path, out)
        said = again.communicate(timeout=600)[1]
        assert again.returncode == 0, said
        now = stored(out)
        twice += len(now) - len(set(now))
        lost += len(before - set(now)) + (stripped(json.loads((out / "report.json").read_text())) != good)
    found = f"{lost} lost, {twice} twice, {odd} foreign"
    print(f"\n{points} audits disturbed {sum(hits.values())} times {dict(hits)}: {found}")  # noqa: T201 - the result
    assert (lost, twice, odd) == (0, 0, 0)
