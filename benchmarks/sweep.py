"""A sweep of many trials with an attack of a millisecond: planning, time a trial at the start and at the end, memory,
report and page.

    python benchmarks/sweep.py --trials 100000 --out benchmarks/results/sweep.jsonl

The first and the last `--run` trials are run by the real command; those between are copies of a real one, stored as
the command stores them, so that an hour becomes minutes. `--run` of all trials copies none.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from sqlalchemy import insert
from sqlalchemy.orm import Session

from leakgauge.study.database import PlannedRow, TrialRow
from leakgauge.study.store import Store

STUB = '''
import time
from dataclasses import dataclass
import torch
from leakgauge.observation import Cost, Reconstruction, Status

@dataclass(frozen=True)
class Stub:
    """Guesses at random in a millisecond."""
    def reconstruct(self, observation, generator, *, budget, compute):
        ends, n = time.perf_counter() + 0.001, observation.examples or 1
        found = torch.rand(n, *observation.task.data.shape, generator=generator)
        while time.perf_counter() < ends:
            pass
        return Reconstruction(found, torch.zeros(n, dtype=torch.long), Status.CONVERGED, cost=Cost(0, 0.001))
'''


def plan(folder: Path, trials: int, defenses: int) -> Path:
    """100 clients under so many defences, and seeds to make up the number."""
    x = np.random.default_rng(0).random((400, 1, 12), dtype=np.float32)
    np.savez(folder / "x.npz", x=x, y=np.arange(400) % 3)
    (folder / "own").mkdir()
    (folder / "own" / "stub.py").write_text(STUB)
    noise = [{"noise": {"sigma": round(0.01 * i, 4)}} for i in range(1, defenses)]
    raw: dict[str, Any] = {
        "name": f"sweep of {trials}",
        "model": {"mlp": {"hidden": [6]}},
        "data": {"source": "npz:x.npz", "batches": 100},
        "defenses": ["none", *noise],
        "attacks": ["own.stub:Stub"],
        "seeds": list(range(trials // (100 * defenses))),
        "gallery": 5,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(raw))
    return folder / "plan.yaml"


def watched(folder: Path, until: int | None, before: int) -> dict[str, float]:
    """Runs the command until so many trials are stored, or to its end."""
    command = [sys.executable, "-m", "leakgauge", "audit", "plan.yaml", "-o", "out", "--workers", "1"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    ours, began, peak, first, ran = psutil.Process(process.pid), time.monotonic(), 0.0, None, before
    spent, start = 0.0, (0.0, 0.0, before)
    while process.poll() is None:
        try:
            family = [ours, *ours.children(recursive=True)]
            spent = sum(sum(p.cpu_times()[:2]) for p in family)
            peak = max(peak, ours.memory_info().rss / 1e6)
        except psutil.Error:
            continue
        ran = count(folder, before)
        if first is None and ran > before:
            first, start = time.monotonic() - began, (time.monotonic(), spent, ran)
        last = (time.monotonic(), spent, ran) if ran < (until or 10**9) or until is None else None
        if last is None:
            process.kill()
            process.wait()
            break
        if until is None and ran >= TRIALS:
            ended = (time.monotonic(), spent, ran)
            process.wait()
            return numbers(start, ended, first, peak) | {"report_s": round(time.monotonic() - ended[0], 1)}
        time.sleep(0.2)
    return numbers(start, (time.monotonic(), spent, ran), first, peak)


def numbers(start: tuple[float, float, int], ended: tuple[float, float, int], first: float | None, peak: float) -> Any:
    n = max(1, ended[2] - start[2])
    return {
        "planned_s": round(first or 0.0, 1),
        "trials": n,
        "cpu_ms_a_trial": round(1e3 * (ended[1] - start[1]) / n, 2),
        "wall_ms_a_trial": round(1e3 * (ended[0] - start[0]) / n, 2),
        "parent_peak_mb": round(peak),
    }


def count(folder: Path, before: int) -> int:
    import sqlite3

    try:
        with sqlite3.connect(f"file:{folder / 'out' / 'audit.sqlite'}?mode=ro", uri=True, timeout=20) as connection:
            return int(connection.execute("select count(*) from trials").fetchone()[0])
    except sqlite3.OperationalError:
        return before


def fill(out: Path, leave: int) -> int:
    """Stores copies of a real trial for all that have not run but so many."""
    store = Store.open(out)
    sample = next(iter(store.each()))
    done = store.finished()
    engine, rows = store._base.engine, []
    with Session(engine) as session, session.begin():
        left = [i for i in session.query(PlannedRow.id).order_by(PlannedRow.id).all() if i[0] not in done]
        for (name,) in left[: max(len(left) - leave, 0)]:
            parts = name.split("/")
            scenario = sample["scenario"] | {"defense": parts[-4], "defended": parts[-4] != "none"}
            scenario["data"] = scenario["data"] | {"index": int(parts[-1][1:])}
            told = {"id": name, "scenario": scenario, "seed": int(parts[-2][1:]), "control": parts[0] == "control"}
            record = json.dumps(sample | told)
            rows.append(TrialRow.sealed(audit=store.key, id=name, record=record, pictures=0, created_at="copy"))
        if rows:
            session.execute(insert(TrialRow), rows)
    store.close()
    return len(done) + len(rows)


def opened(page: Path) -> float | None:
    """Seconds until Chromium has loaded the page, without its own start."""
    try:
        from selenium import webdriver
    except ModuleNotFoundError:
        return None
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.get("data:,")
    began = time.monotonic()
    driver.get(page.as_uri())
    seconds = time.monotonic() - began
    driver.quit()
    return round(seconds, 2)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--trials", type=int, default=100_000)
    options.add_argument("--defenses", type=int, default=10)
    options.add_argument("--run", type=int, default=400)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plan(folder, asked.trials, asked.defenses)
        start = watched(folder, asked.run, 0)
        TRIALS = 10**9
        filled = fill(folder / "out", asked.run)
        store = Store.open(folder / "out")
        TRIALS = filled + store.missing()
        store.close()
        end = watched(folder, None, filled)
        page = folder / "out" / "report.html"
        told = {
            "trials": TRIALS,
            "copied": filled - asked.run,
            "start": start,
            "end": end,
            "page_mb": round(page.stat().st_size / 1e6, 2),
            "json_mb": round((folder / "out" / "report.json").stat().st_size / 1e6, 1),
            "page_opens_s": opened(page),
            "load": psutil.getloadavg()[0],
            "own_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        }
        print(json.dumps(told, indent=1))
        if asked.out is not None:
            with asked.out.open("a") as file:
                file.write(json.dumps(told) + "\n")
