"""A small Ray cluster on this machine: a worker that dies and a driver that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from sqlalchemy import create_engine, text

from study.plans import plan_file
from study.postgres import cluster

pytest.importorskip("ray")
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "RAY_worker_niceness": "0",  # by default Ray's workers give way to everything else on the machine
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def start(*arguments: str) -> None:
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--disable-usage-stats"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Three worker processes; none of the cluster's processes outlives the tests."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    before = {p.pid for p in psutil.process_iter()}
    options = "--num-cpus=3", "--include-dashboard=false", "--object-store-memory=100000000"
    start("--head", f"--port={port}", "--node-ip-address=127.0.0.1", *options)
    yield f"127.0.0.1:{port}"
    for process in psutil.process_iter(["cmdline"]):
        own = any(part.startswith("ray::") or "/ray/" in part for part in process.info["cmdline"] or ())
        if process.pid not in before and own:
            process.kill()


def audit(plan: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leakgauge", "audit", str(plan), "-o", str(out), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, start_new_session=True, cwd=plan.parent
    )


def ended(process: subprocess.Popen[str]) -> None:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out + err


def stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k not in ("seconds", "created_at")}
    return [stripped(v) for v in value] if isinstance(value, list) else value


def report(out: Path) -> Any:
    return stripped(json.loads((out / "report.json").read_text()))


def count(store: str) -> Counter[str]:
    engine = create_engine(store)
    try:
        with engine.connect() as connection:
            return Counter(connection.execute(text("select id from trials")).scalars())
    except Exception:  # noqa: BLE001 - it has not begun
        return Counter()
    finally:
        engine.dispose()


def until(store: str, at: int, process: subprocess.Popen[str]) -> None:
    ends = time.monotonic() + 200
    while len(count(store)) < at and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.05)
    assert process.poll() is None, "it ended before it could be disturbed"


def a_worker() -> psutil.Process:
    """One that runs a trial."""
    for _ in range(400):
        found = [
            p for p in psutil.process_iter(["cmdline"]) if " ".join(p.info["cmdline"] or ()).startswith("ray::task")
        ]
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError("no worker is at work")


def disturbed(plan: Path, out: Path, address: str, store: str, *options: str) -> None:
    """A worker is killed in the middle, then the driver, and the same command is run again."""
    first = audit(plan, out, "--ray", address, *options)
    until(store, 4, first)
    a_worker().send_signal(signal.SIGKILL)
    until(store, 12, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    ended(audit(plan, out, "--ray", address, *options))


@pytest.mark.slow
def test_a_small_sweep_finds_the_same(address: str, tmp_path: Path) -> None:
    path = plan_file(tmp_path)
    small = yaml.safe_load(path.read_text()) | {"attacks": ["closed-form"]}
    small["data"]["batches"] = 3
    path.write_text(yaml.safe_dump(small))
    swept = audit(path, tmp_path / "out", "--ray", address)
    ended(audit(path, tmp_path / "alone", "--workers", "1"))
    ended(swept)
    through, here = report(tmp_path / "out"), report(tmp_path / "alone")
    assert len(here["trials"]) == 3
    assert through == here


@pytest.mark.slow
def test_a_killed_worker_and_a_killed_driver_lose_nothing(address: str, tmp_path: Path) -> None:
    plan = plan_file(tmp_path)
    ended(audit(plan, tmp_path / "alone", "--workers", "1"))
    disturbed(plan, tmp_path / "out", address, f"sqlite:///{tmp_path / 'out' / 'audit.sqlite'}")
    assert report(tmp_path / "out") == report(tmp_path / "alone")
    assert set(count(f"sqlite:///{tmp_path / 'out' / 'audit.sqlite'}").values()) == {1}


@pytest.mark.slow
def test_so_it_is_in_a_teams_database(address: str, tmp_path: Path) -> None:
    plan = plan_file(tmp_path)
    ended(audit(plan, tmp_path / "alone", "--workers", "1"))
    with cluster() as store:
        disturbed(plan, tmp_path / "out", address, store, "--store", store)
        assert report(tmp_path / "out") == report(tmp_path / "alone")
        assert set(count(store).values()) == {1}
