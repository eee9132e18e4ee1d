"""Scenes of `breaching` 0.1.2's own, both tools on one update: `python benchmarks/rivals.py --data F --python P`.

Networks, photos, seeds and claims are named here, and were before any run. Each run is a process of its own; a row is
written after it to `--out`, and a run whose row is there is not repeated. `--table` prints what is there. Neither side
is told the label. Seconds are those of the process; ours may spend as many as the other side spent on that photo.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.metrics.likeness import one_to_one
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task

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


WORDS, LENGTH, CLASSES = Path(__file__).parents[1] / "leaderboard" / "texts.csv", 12, 4


class Encoder(nn.Module):
    """Two layers of attention to both sides, and the mean over a text. The other side knows an embedding by the name
    `encoder`."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.encoder, self.places = nn.Embedding(len(words()[1]), width), nn.Parameter(torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, activation="gelu", batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.encoder(ids) + self.places).mean(1))  # type: ignore[no-any-return]


@cache
def words() -> tuple[list[list[int]], list[str]]:
    """The first words of the leaderboard's texts that have as many, and all words."""
    with WORDS.open(newline="") as file:
        texts = [re.findall(r"[a-z']+", row["text"].lower()) for row in csv.DictReader(file)]
    every = sorted({word for text in texts for word in text})
    return [[every.index(word) for word in text[:LENGTH]] for text in texts if len(text) >= LENGTH], every


def held(found: Tensor | None, true: Tensor) -> tuple[float, float]:
    """Shares of the tokens that are found in their places, texts in the best order, and of all that are found."""
    if found is None:
        return 0.0, 0.0
    place = torch.tensor([[-float((one == other).sum()) for other in found] for one in true])
    inside = sum(-float(place[i, j]) for i, j in enumerate(one_to_one(place)) if j is not None)
    bag = (Counter(true.flatten().tolist()) & Counter(found.flatten().tolist())).total()
    return inside / true.numel(), bag / true.numel()


@dataclass(frozen=True)
class Scene:
    """A network, the other side's own attack on it, and held-out photos of the CIFAR-10 test file, the first of each
    batch; or texts of the leaderboard's file, likewise."""

    network: Callable[[], nn.Module]
    setting: str
    photos: tuple[int, ...]
    sides: tuple[str, str] = (THEIRS, OURS)
    batch: int = 1


SCENES = {
    "lenet_zhu": Scene(lenet, "deep-leakage-joint", (9170, 9171, 9172, 9173, 8980, 8981, 8982, 8983)),
    "cnn6": Scene(cnn6, "r-gap", (9174, 9175, 9176), (OURS, THEIRS)),
    "imprint": Scene(imprinted, "imprint", (8600, 8664, 8728, 8792), batch=64),
    "texts": Scene(Encoder, "tag", (24, 28, 32, 36, 40, 44), batch=4),
    "tokens": Scene(Encoder, "tag", (101, 102, 103, 104, 105, 106), batch=4),
}
"""Claim of each photo: ours has at least the other side's decibels, in at most its CPU seconds. What was there before
was tried on photo 8001 alone, seed 11. Of a batch: ours has at least as many photos above `CLEAR`, one to one; of
texts, at least as many tokens in their places, in at most its seconds. Tried before on texts 0 to 15 alone. `tokens`
are drawn by seeds, alike."""

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
        if scene.network is Encoder:
            texts, every = words()
            data = DataSpec((LENGTH,), CLASSES, low=0, high=len(every) - 1, vocabulary=len(every))
            drawn = torch.Generator().manual_seed(photo)
            random = torch.randint(len(every), (scene.batch, LENGTH), generator=drawn)
            tokens = random if self.scene == "tokens" else torch.tensor(texts[photo : photo + scene.batch])
            batch = Batch(tokens.float(), torch.arange(scene.batch) % CLASSES)
        else:
            data, batch = spec(source), source.read(range(photo, photo + scene.batch))
        task = Task.of(scene.network(), data)
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
            order = None if found.tokens is None else found.tokens.order
            spent, picture = time.process_time() - began, order if task.data.is_text else found.inputs
            row |= {
                "status": found.status.value,
                "message": found.message,
                "evaluations": found.cost.gradient_evaluations,
            }
        else:
            from breaching_side import attack

            run = attack(seen, scene.setting, None, seed, None)
            began = time.process_time()
            picture = run()
            spent = time.process_time() - began
        if task.data.is_text:
            place, bag = held(picture, batch.inputs.long())
            return row | {"seconds": round(spent, 1), "psnr": None, "place": round(place, 3), "bag": round(bag, 3)}
        picture = task.data.denormalise(picture) if self.side == THEIRS and picture is not None else picture
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
            several = "clear" if SCENES[name].batch > 1 else "psnr"
            counted = "place" if SCENES[name].network is Encoder else several
            said = {"clear": f"{{}} above {CLEAR:.0f}", "place": "{:.0%} in place", "psnr": "{}"}[counted]
            theirs, ours = (
                ", ".join(f"{said.format(r[counted])} ({r['seconds']:.0f})" for r in side)
                for side in zip(*both, strict=True)
            )
            met = sum(
                b[counted] >= a[counted] and (counted == "clear" or b["seconds"] <= a["seconds"] + 1) for a, b in both
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
