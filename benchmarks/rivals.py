"""Scenes of `breaching` 0.1.2's own, both tools on one update: `python benchmarks/rivals.py --data F --python P`.

Networks, photos, seeds and claims are named here, and were before any run. Each run is a process of its own; a row is
written after it to `--out`, and a run whose row is there is not repeated. `--table` prints what is there. Neither side
is told the label. Seconds are those of the process; ours may spend as many as the other side spent on that photo.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.metrics.likeness import one_to_one
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task

OURS, THEIRS = "leakgauge", "breaching"
CLOCK, LONGEST, LEAST = 3600.0, 300.0, 30.0
"""Of the clock, of ours where the other side has not run, and at least."""


def cnn6() -> nn.Module:
    """Six convolutions without biases, leaky ReLUs and a linear head with one, as R-GAP has them."""
    widths, kernels, strides = (3, 12, 36, 36, 36, 64, 128), (4, 3, 3, 3, 3, 3), (2, 2, 1, 1, 2, 1)
    parts: list[nn.Module] = []
    for (c, k), size, stride in zip(itertools.pairwise(widths), kernels, strides, strict=True):
        parts += [nn.Conv2d(c, k, size, stride, padding=size // 2, bias=False), nn.LeakyReLU(0.2)]
    # R-GAP's own code takes modules from the last on, and an activation right before the head.
    return nn.Sequential(*parts[:-1], nn.Flatten(), parts[-1], nn.Linear(3200, 10))


def imprinted() -> nn.Module:
    """The other side's own block of 128 bins in front of a LeNet, as its server puts it there."""
    from breaching_side import framework

    framework()
    from breaching.cases.malicious_modifications import ImprintBlock

    return nn.Sequential(ImprintBlock((3, 32, 32), 128, linfunc="fourier", mode=0), lenet())


@dataclass(frozen=True)
class Scene:
    """A network, the other side's own attack on it, and held-out photos of the CIFAR-10 test file, the first of each
    batch."""

    network: Callable[[], nn.Module]
    setting: str
    photos: tuple[int, ...]
    sides: tuple[str, str] = (THEIRS, OURS)
    batch: int = 1


SCENES = {
    "lenet_zhu": Scene(lenet, "deep-leakage-joint", (9170, 9171, 9172, 9173, 8980, 8981, 8982, 8983)),
    "cnn6": Scene(cnn6, "r-gap", (9174, 9175, 9176), (OURS, THEIRS)),
    "imprint": Scene(imprinted, "imprint", (8600, 8664, 8728, 8792), batch=64),
}
"""Claim of each photo: ours has at least the other side's decibels, in at most its CPU seconds. What was there before
was tried on photo 8001 alone, seed 11. Of a batch: ours has at least as many photos above `CLEAR`, one to one."""

CLEAR = 45.0  # dB

ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
"""R-GAP's linear algebra is NumPy's, which would keep a second processor busy."""

SEEDS = (11, 12, 13)
"""Of weights and searches; the i-th photo takes seed i modulo three."""


@dataclass(frozen=True)
class Case:
    """One run."""

    scene: str
    index: int
    side: str

    def ran(self, data: Path, seconds: float) -> dict[str, Any]:
        """In this process."""
        Compute(threads=1).apply()
        scene, seed, source = SCENES[self.scene], SEEDS[self.index % len(SEEDS)], Parquet(path=str(data))
        photo = scene.photos[self.index]
        torch.manual_seed(seed)
        task = Task.of(scene.network(), spec(source))
        batch = source.read(range(photo, photo + scene.batch))
        update = client_update(task, FedSGD(), batch, Draws(seed))
        seen = Observation(task, update, Knowledge(example_count=scene.batch, local_training=FedSGD()))
        row: dict[str, Any] = asdict(self) | {"photo": photo, "seed": seed}
        if self.side == OURS:
            began = time.process_time()
            found = Auto().reconstruct(
                seen,
                torch.Generator().manual_seed(seed),
                budget=Budget(seconds=CLOCK),
                on_step=lambda _: time.process_time() - began > seconds,
            )
            spent, picture = time.process_time() - began, found.inputs
            row |= {
                "status": found.status.value,
                "message": found.message,
                "evaluations": found.cost.gradient_evaluations,
            }
        else:
            from breaching_side import attack

            run = attack(seen, scene.setting, None, seed, None)
            began = time.process_time()
            picture = task.data.denormalise(run())
            spent = time.process_time() - began
        made = [] if picture is None else [picture.float().cpu()[None, i] for i in range(len(picture))]
        cost = torch.tensor([[-float(PSNR()(one, true[None])) for one in made] for true in batch.inputs])
        best = sorted(-float(cost[i, j]) for i, j in enumerate(one_to_one(cost)) if j is not None) if made else []
        psnr = round(statistics.median(best), 1) if best else None
        return row | {"seconds": round(spent, 1), "psnr": psnr, "clear": sum(one > CLEAR for one in best)}


def cases() -> Iterator[Case]:
    """All runs; the other side first where it is quick, whose seconds are ours."""
    for name, scene in SCENES.items():
        for index in range(len(scene.photos)):
            yield from (Case(name, index, side) for side in scene.sides)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Photo by photo, and how many meet the claim."""
    yield "| scene | photos | breaching: dB (CPU s) | leakgauge: dB (CPU s) | claim met |"
    yield "|---|---|---|---|---|"
    for name in SCENES:
        own = {(r["index"], r["side"]): r for r in rows if r["scene"] == name}
        both = [(own[i, THEIRS], own[i, OURS]) for i, side in own if side == OURS and (i, THEIRS) in own]
        if both:
            several = SCENES[name].batch > 1
            words = (lambda r: f"{r['clear']} above {CLEAR:.0f}") if several else (lambda r: r["psnr"])
            theirs, ours = (
                ", ".join(f"{words(r)} ({r['seconds']:.0f})" for r in side) for side in zip(*both, strict=True)
            )
            met = sum(
                b["clear"] >= a["clear"] if several else b["psnr"] >= a["psnr"] and b["seconds"] <= a["seconds"] + 1
                for a, b in both
            )
            photos = ", ".join(str(a["photo"]) for a, _ in both)
            yield f"| {name} | {photos} | {theirs} | {ours} | {met} of {len(both)} |"
    seconds = [r["seconds"] for r in rows if r["side"] == OURS]
    if seconds:
        yield f"\nOurs: median {statistics.median(seconds):.0f} CPU s."


def main() -> None:
    """Runs what is missing, or prints the table."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--data", type=Path, help="CIFAR-10's test file")
    asked.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "rivals.jsonl")
    asked.add_argument("--python", default=sys.executable, help="of the environment that has breaching")
    asked.add_argument("--only", nargs="*", default=list(SCENES), choices=SCENES)
    asked.add_argument("--one", help="a case as JSON, run in this process and printed")
    asked.add_argument("--seconds", type=float, default=LONGEST, help="of `--one`")
    asked.add_argument("--table", action="store_true")
    given = asked.parse_args()
    if given.one:
        print(json.dumps(Case(**json.loads(given.one)).ran(given.data, given.seconds)))
        return
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table:
        print("\n".join(table(rows)))
        return
    done = {Case(r["scene"], r["index"], r["side"]): r for r in rows}
    for case in cases():
        if case in done or case.scene not in given.only:
            continue
        theirs = done.get(Case(case.scene, case.index, THEIRS), {"seconds": LONGEST})
        command = [given.python, __file__, "--data", str(given.data), "--one", json.dumps(asdict(case))]
        command += ["--seconds", str(max(theirs["seconds"], LEAST))]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | ONE_THREAD)
        if ran.returncode:
            sys.exit(f"{case} ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
        done[case] = json.loads(ran.stdout.splitlines()[-1])
        with given.out.open("a") as out:
            out.write(json.dumps(done[case]) + "\n")
        print(json.dumps(done[case]), flush=True)


if __name__ == "__main__":
    main()
