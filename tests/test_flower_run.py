"""The Flower example by `flwr run`: in simulation, and as SuperLink and SuperNodes on loopback. Then audited."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

APP = Path(__file__).parents[1] / "examples" / "flower"
SHARED = Path(os.environ.get("LEAKGAUGE_SHARED", APP.parents[2] / "shared"))
PHOTOS = SHARED / "data" / "cifar10-train.parquet"
SECONDS = 1200
BIN = Path(sys.executable).parent
ADAM = {"optimizer": "adam", "epochs": 2, "lr": 0.001}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of Flower's processes; a SuperLink that `flwr run` starts for itself is stopped afterwards.

    Ray would wait for a cluster that a killed process left in its folder; a local one is its own.
    """
    before = {p for p, words in _processes() if "flower-superlink" in words}
    yield {**os.environ, "FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
           "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local", "RAY_worker_niceness": "0"}  # fmt: skip
    for process, words in _processes():
        if process not in before and "flower-superlink" in words and str(tmp_path) in words:
            os.kill(process, 15)


def _processes() -> list[tuple[int, str]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        found.append((int(folder.name), words.decode(errors="replace")))
    return found


def flwr_run(env: dict[str, str], link: str, settings: dict[str, Any]) -> str:
    words = " ".join(f"{k}={json.dumps(v)}" for k, v in settings.items())
    command = [str(BIN / "flwr"), "run", str(APP), *([link] if link else []), "--stream", "--run-config", words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def audited(folder: Path, client: str, output: Path, *more: str) -> dict[str, Any]:
    """One command with three options, or four."""
    command = [sys.executable, "-m", "leakgauge", "captured", str(folder), "--model", "app:Net"]
    done = subprocess.run([*command, "--client", client, "-o", str(output), *more], cwd=APP, timeout=SECONDS)
    assert done.returncode == 0
    report: dict[str, Any] = json.loads((output / "report.json").read_text())
    return report


def first(captures: Path) -> tuple[Path, Path]:
    """One client's capture of the first round, and the server's of the same."""
    client = next(f for f in sorted(captures.glob("round-1-*")) if not f.name.endswith("-server"))
    return client, client.with_name(f"{client.name}-server")


def highest(report: dict[str, Any]) -> float:
    value = report["verdict"]["findings"][0]["psnr"]["highest"]
    assert isinstance(value, float)
    return value


@pytest.mark.skipif(not PHOTOS.is_file(), reason=f"needs {PHOTOS}")
@pytest.mark.parametrize(
    ("settings", "client", "least"),
    [
        ({"examples": 1, "batch-size": 1}, "{fedavg: {lr: 0.01}}", 20.0),
        ({"examples": 8, "batch-size": 8}, "{fedavg: {lr: 0.01}}", 0.0),
        (
            {"examples": 1, "batch-size": 1, **ADAM},
            "{local-training: {optimiser: {adam: {lr: 0.001}}, epochs: 2, batch_size: 1}}",
            16.0,
        ),
    ],
    ids=["batch-1", "batch-8", "adam"],
)
def test_a_simulated_round_is_captured_on_both_sides_and_audited(
    tmp_path: Path, home: dict[str, str], settings: dict[str, Any], client: str, least: float
) -> None:
    pytest.importorskip("ray")
    captures = tmp_path / "captures"
    flwr_run(home, "", {"captures": str(captures), "photos": str(PHOTOS), "rounds": 1, **settings})
    mine, servers = first(captures)
    assert (mine / "update.safetensors").is_file()
    report = audited(servers, client, tmp_path / "audit", "--evaluations", "1200")
    assert report["verdict"]["explained"]["holds"]
    assert highest(report) >= least


@contextmanager
def started(env: dict[str, str], *words: str) -> Iterator[None]:
    process = subprocess.Popen([str(BIN / words[0]), *words[1:]], env=env, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def free() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.skipif(shutil.which("flower-superlink", path=str(BIN)) is None, reason="needs Flower's commands")
def test_rounds_of_a_deployment_on_loopback_are_captured(tmp_path: Path, home: dict[str, str]) -> None:
    link = free()
    (tmp_path / "flwr").mkdir()
    config = f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "{link}"\ninsecure = true\n'
    (tmp_path / "flwr" / "config.toml").write_text(config)
    captures = tmp_path / "captures"
    with ExitStack() as stack:
        plain = "--disable-runtime-dependency-installation"
        host = ["--host", "127.0.0.1", "--port", link.split(":")[1]]
        stack.enter_context(started(home, "flower-superlink", "--insecure", plain, *host))
        while not listens(link):
            time.sleep(1)
        for node in (0, 1):
            place = ["--superlink", link, "--port", free().split(":")[1]]
            about = ["--node-config", f"partition-id={node} num-partitions=2"]
            stack.enter_context(started(home, "flower-supernode", "--insecure", *place, *about))
        flwr_run(home, "loopback", {"captures": str(captures), "examples": 1, "batch-size": 1, "rounds": 1})
    mine, servers = first(captures)
    assert (mine / "examples.npz").is_file()
    report = audited(servers, "{fedavg: {lr: 0.01}}", tmp_path / "audit")
    assert report["verdict"]["explained"]["holds"]
    assert highest(report) >= 20
