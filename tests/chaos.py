"""Runs that are killed, starved and doubled at points drawn at random, in processes forked from a warm one."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from reproduce.classifier.training import NoAugmentation, Recipe, fit
from reproduce.classifier.weights import keep_weights
from safetensors import SafetensorError
from safetensors.torch import load_file

from leakgauge.compute import Compute
from leakgauge.data import open_source
from leakgauge.data.source import spec
from leakgauge.errors import InputError
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.frontiers.session import run_frontier
from leakgauge.models import mlp
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from leakgauge.study.session import write_reports
from leakgauge.study.store import FILE
from leakgauge.workers import LocalPool
from study.plans import tiny

GROUP, WORKER = "kill the group", "kill a worker"
WAYS = (GROUP, WORKER, GROUP, WORKER, "full disk", "two writers")
BLOWS = 4
"""How often a run is disturbed before it is let come to its end."""
PATIENCE = 120.0
"""Seconds after which a run that should end counts as hanging."""


def stripped(report: Any) -> Any:
    if isinstance(report, dict):
        return {k: stripped(v) for k, v in report.items() if k not in ("seconds", "created_at")}
    return [stripped(v) for v in report] if isinstance(report, list) else report


def ids(out: Path) -> list[str]:
    """Of all trials stored below a folder, twice if they are there twice."""
    found: list[str] = []
    for file in sorted(out.rglob(FILE)):
        connection = sqlite3.connect(file, timeout=30)
        try:
            found += [f"{file.parent.name}/{row[0]}" for row in connection.execute("select id from trials")]
        except sqlite3.DatabaseError:
            pass
        finally:
            connection.close()
    return found


@dataclass(frozen=True)
class Subject:
    """A kind of run: what it does in a folder, and what must come of it whatever happened on the way."""

    name: str
    run: Callable[[Path], None]
    result: Callable[[Path], Any]
    ways: tuple[str, ...]


def write_data(folder: Path) -> None:
    """Sixty records of numbers."""
    x = np.random.default_rng(0).random((60, 1, 12), dtype=np.float32)
    np.savez(folder / "x.npz", x=x, y=np.arange(60) % 3)


def audit(folder: Path) -> Subject:
    """Twelve small trials and their controls."""
    raw = tiny(
        model={"mlp": {"hidden": [6]}},
        data={"source": f"npz:{folder / 'x.npz'}", "batches": 4},
        defenses=["none"],
        attacks=["closed-form", {"inverting-gradients": {"steps": 20}}],
        gallery=5,
        budget={"trial_seconds": 20},
    )

    def work(out: Path) -> None:
        store = run(resolve_plan(raw), out, Running(executor=LocalPool(2)))
        write_reports(store)
        store.close()

    return Subject("audit", work, lambda out: stripped(json.loads((out / "report.json").read_text())), WAYS)


def frontier(folder: Path) -> Subject:
    """Two defences beside none, attacked and trained."""
    source = f"npz:{folder / 'x.npz'}"
    raw = {
        "model": {"mlp": {"hidden": [6]}},
        "data": {"source": source, "images": 3},
        "client": {"fedavg": {"batch_size": 8, "lr": 0.5}},
        "attack": "closed-form",
        "gallery": 5,
        "budget": {"trial_seconds": 20},
        "defenses": {"top-k": [{"topk": {"keep": 0.1}}], "prune": [{"prune": {"rate": 0.5}}]},
        "utility": {"train": source, "test": source, "clients": 5, "per_round": 2, "rounds": 6, "evaluate_every": 2},
    }

    def work(out: Path) -> None:
        run_frontier(resolve_frontier(raw), out, workers=2)

    return Subject("frontier", work, lambda out: stripped(json.loads((out / "report.json").read_text())), WAYS)


def training(folder: Path) -> Subject:
    """Forty epochs; a checkpoint after each."""

    def work(out: Path) -> None:
        source = open_source(f"npz:{folder / 'x.npz'}")
        torch.manual_seed(0)
        net = mlp(shape=(1, 12), hidden=(6,), classes=3)
        out.mkdir(exist_ok=True)
        recipe = Recipe(epochs=40, batch_size=8, augmentation=NoAugmentation())
        fit(
            net, spec(source), source.read(range(60)), recipe, seed=0, checkpoint=out / "x.checkpoint",
        )  # fmt: skip
        state = {k: v.contiguous() for k, v in net.state_dict().items()}
        keep_weights(state, out / "x.safetensors", {}, checkpoint=out / "x.checkpoint", score=None)

    def result(out: Path) -> Any:
        return {k: v.tolist() for k, v in load_file(out / "x.safetensors").items()}

    return Subject("fit", work, result, (GROUP, GROUP, "full disk"))


@dataclass
class Count:
    """What was tried and what failed."""

    hits: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    lost: int = 0
    twice: int = 0
    foreign: int = 0
    hung: int = 0
    slowest: float = 0.0
    """Seconds of the slowest run that was left alone after it had been disturbed."""
    said: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        """Runs whose group, or one of whose workers, was killed."""
        return self.hits[GROUP] + self.hits[WORKER]


def warm(subject: Subject, out: Path) -> None:
    """Starts the server that all workers are forked from, once for all runs, and imports here what a run needs."""
    get_context("forkserver").set_forkserver_preload(["leakgauge.study.run", "torch._dynamo"])
    forkserver.ensure_running()
    subject.run(out)


def workers() -> list[psutil.Process]:
    return psutil.Process(forkserver._forkserver._forkserver_pid).children()


def begin(subject: Subject, out: Path, limit: int | None = None) -> int:
    """A run in a process of its own; exit code 0, 2 for one line, 3 for anything else."""
    forkserver.ensure_running()  # Python's ends where a client is killed while it sends
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        os.setsid()
        forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]  # its parent's serves
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        Compute().apply()
        subject.run(out)
        code = 0
    except InputError:
        code = 2
    except BaseException:  # noqa: BLE001 - what is looked for
        (out.parent / f"{out.name}-{os.getpid()}.traceback").write_text(traceback.format_exc())
    finally:
        os._exit(code)


def end(pid: int, count: Count) -> int:
    """Its exit code; −1 if it was killed, or hung and was."""
    until = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            count.foreign += code == 3
            return code
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            count.hung += 1
            return -1
        time.sleep(0.005)


def disturb(subject: Subject, way: str, out: Path, after: float, size: int, dice: random.Random, count: Count) -> None:
    """One run, disturbed `after` seconds."""
    pid = begin(subject, out, dice.randrange(2_000, size) if way == "full disk" else None)
    if way == "full disk":
        count.hits[way] += end(pid, count) == 2
        return
    if way == WORKER:
        after /= 3
        while not workers() and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.005)
    time.sleep(after)
    if os.waitpid(pid, os.WNOHANG)[0]:  # too late
        return
    if way == "two writers":
        second = begin(subject, out)
        count.hits[way] += end(second, count) in (0, 2)
        end(pid, count)
        return
    there = workers()
    if way == GROUP or not there:
        os.kill(pid, signal.SIGKILL)
        for worker in there:
            worker.kill()
        count.hits[GROUP] += 1
    else:
        dice.choice(there).kill()
        count.hits[way] += 1
    end(pid, count)
    psutil.wait_procs(workers(), timeout=20)


def ended(subject: Subject, out: Path) -> bool:
    """Whether a run has its result, so that no blow can strike it any more."""
    try:
        subject.result(out)
    except (OSError, ValueError, SafetensorError):
        return False
    return True


def chaos(
    make: Callable[[Path], Subject],
    folder: Path,
    points: int,
    seed: int = 0,
    on_point: Callable[[str], None] | None = None,
) -> Count:
    """Disturbs runs until `points` blows have struck, some in each, and lets each come to its end: with the undisturbed
    result. A blow that comes too late does not count."""
    folder.mkdir(exist_ok=True)
    write_data(folder)
    subject, count, dice = make(folder), Count(), random.Random(seed)
    warm(subject, folder / "warm")
    whole, began = folder / "whole", time.monotonic()
    assert end(begin(subject, whole), count) == 0, [p.read_text() for p in folder.glob("*.traceback")]
    took, good = time.monotonic() - began, subject.result(whole)
    size = max(20_000, *(p.stat().st_size for p in whole.rglob("*") if p.is_file()))
    stored = max(1, len(ids(whole)))
    while (struck := sum(count.hits.values())) < points and count.runs < 2 * points:
        way, out = subject.ways[count.runs % len(subject.ways)], folder / f"out-{count.runs}"
        before: set[str] = set()
        for _ in range(BLOWS):
            left = max(0.3, 1 - len(before) / stored)
            disturb(subject, way, out, dice.random() * took * left, size, dice, count)
            now = ids(out)
            count.twice += len(now) - len(set(now))
            count.lost += len(before - set(now))
            before = set(now)
            if ended(subject, out):
                break
        began = time.monotonic()
        code = end(begin(subject, out), count)
        count.slowest = max(count.slowest, time.monotonic() - began)
        count.runs += 1
        if on_point is not None:
            struck = sum(count.hits.values()) - struck
            on_point(f"{way}: {struck} struck, then exit code {code} after {time.monotonic() - began:.1f} s")
        if code != 0 or subject.result(out) != good:
            count.lost += 1
            count.said.append(f"{way}, run {count.runs}: exit code {code}")
        else:
            shutil.rmtree(out)
    count.said += [p.read_text()[-1500:] for p in folder.glob("*.traceback")]
    return count
