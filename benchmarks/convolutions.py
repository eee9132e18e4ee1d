"""What is read of convolutional networks: `python benchmarks/convolutions.py --data F --pictures G --out rows.jsonl`.

The photos and seeds of the table are named here, and were before any run on them. A row is written after each run, and
a run whose row is there is not repeated. `--table` prints what is there. Seconds are those of the process, which ends a
search after as many; the clock's would depend on who else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from leakgauge.attacks.recipes import Auto, Features
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.face import attack
from leakgauge.models import convnet, resnet18, resnet20
from leakgauge.models.weights import load_weights, packaged
from leakgauge.observation import Knowledge, Reconstruction
from leakgauge.task import Batch, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from reproduce.inspection.zoo_modern import Dense
from reproduce.resnets import resnet18_imagenet

HELD_OUT = range(9800, 10000)
"""Photos of the table, of the CIFAR-10 test file: settings were chosen on others, from 8000 to 8199. Those from 9000 to
9443 and from 9700 to 9787 were looked at before settings changed (rows in results/convolution*-9*.jsonl,
convolution-rounds*.jsonl and convolution-noise.jsonl). Rows of single photos, 9420 to 9429, are older than the read of
short ranks. Rows of 9800 to 9847 are kept: others are named before a setting changes."""

PICTURES = range(632, 700)
"""Of the ImageNet sample, for networks at 224 px: settings were chosen on others, from 500 to 599; 610 to 612 and 620
to 631 were looked at. Rows of 632 to 641 are kept: others are named before a setting changes."""

SEEDS = (11, 12, 13)
"""Of weights and searches; run i takes seed i modulo three."""

CLAIMS = {
    ("resnet18-16", 1, "eval"): (100.0, 0.9),
    ("resnet18-32", 1, "eval"): (100.0, 0.9),
    ("resnet18-64", 1, "eval"): (100.0, 0.9),
    ("convnet-64", 1, "eval"): (100.0, 0.9),
    ("resnet20-16-trained", 1, "eval"): (60.0, 0.9),
    ("resnet18-32-trained", 1, "eval"): (60.0, 0.9),
    ("resnet18-224px", 1, "eval"): (30.0, 0.5),
    ("resnet18-224px", 4, "eval"): (22.0, 0.5),
    ("resnet18-64", 8, "eval"): (60.0, 0.95),
    ("resnet18-64", 16, "eval"): (60.0, 0.95),
    ("resnet18-64", 24, "eval"): (60.0, 0.95),
    ("resnet18-32", 8, "eval"): (40.0, 0.95),
    ("resnet18-32-trained", 4, "eval"): (60.0, 0.9),
    ("resnet18-32-trained", 8, "eval"): (40.0, 0.9),
    ("resnet18-32", 1, "train"): (50.0, 0.9),
    ("resnet18-32", 4, "train"): (22.0, 0.5),
    ("convnet-16", 1, "eval"): (0.0, 0.0),
    ("resnet20-16", 1, "eval"): (0.0, 0.0),
    ("densenet-12", 1, "eval"): (0.0, 0.0),
}
"""Network, batch and mode: at least so many decibels for at least that share of the photos. Of the last three, whose
layers have too few filters, nothing is claimed: what the reads gain is what they leave above `search`."""

ATTACKERS = ("features", "auto", "search")  # the last is what `auto` would search by, without any read
RUNS, BATCHES = 10, 3  # runs of one photo, and of a batch
SECONDS, CLOCK = 200.0, 3600.0
"""Of the process that a search may take, and the budget by the clock that keeps it going until then."""


@dataclass(frozen=True)
class Case:
    """One run."""

    network: str
    batch: int
    mode: str
    index: int
    attacker: str

    @property
    def photos(self) -> list[int]:
        """Those of this run: batches follow each other, and start anew at the end."""
        first = self.index * self.batch
        return [self.pool[(first + i) % len(self.pool)] for i in range(self.batch)]

    @property
    def pool(self) -> range:
        """Photos that are named for its network."""
        return PICTURES if self.network.endswith("224px") else HELD_OUT

    @property
    def seed(self) -> int:
        """Of weights and search."""
        return SEEDS[self.index % len(SEEDS)]


def network(name: str, seed: int, weights: Path | None) -> nn.Module:
    """A network by its name."""
    torch.manual_seed(seed)
    if name == "resnet18-224px":
        return resnet18_imagenet(classes=1000)
    if name == "densenet-12":
        return dense_network(growth=12, depth=4)
    kind, width = name.split("-")[:2]
    made = {"resnet18": resnet18, "resnet20": resnet20, "convnet": convnet}[kind](width=int(width))
    if name == "resnet20-16-trained":
        load_weights(made, packaged("resnet20-cifar10"), "weights")
    elif name.endswith("trained"):
        assert weights is not None, "give --weights"
        load_weights(made, weights, "weights")
    return made


def dense_network(growth: int, depth: int) -> nn.Module:
    """Three dense blocks of so many convolutions, channels halved in between."""
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
    for block in range(3):
        layers += [Dense(channels + growth * k, growth) for k in range(depth)]
        channels += growth * depth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if block < 2:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def cases(attackers: tuple[str, ...], runs: int) -> Iterator[Case]:
    """All runs, networks in turn, so that a run that is cut off has some of each."""
    for index in range(runs):
        for name, batch, mode in CLAIMS:
            if index >= (RUNS if batch == 1 else BATCHES):
                continue
            yield from (Case(name, batch, mode, index, attacker) for attacker in attackers)


def ran(case: Case, source: Parquet, weights: Path | None, seconds: float) -> dict[str, Any]:
    """One run, scored against the truth one to one."""
    batch = source.read(case.photos)
    task = Task.of(network(case.network, case.seed, weights), spec(source), mode=case.mode)
    update = client_update(task, FedSGD(), batch, Draws(case.seed))
    known = Knowledge(local_training=FedSGD(), example_count=case.batch, defense=NoDefense())
    searched = Auto().choice(task, torch.Generator().manual_seed(case.seed))
    method = {"features": Features(), "auto": Auto(), "search": searched}[case.attacker]
    began = time.process_time()
    found = attack(
        task,
        update,
        using=method,
        knows=known,
        seed=case.seed,
        budget=Budget(seconds=CLOCK),
        on_step=lambda _: time.process_time() - began > seconds,
        compute=Compute(threads=1),
    )
    row: dict[str, Any] = asdict(case) | {"photos": case.photos, "seed": case.seed}
    row |= {"seconds": round(time.process_time() - began, 1), "status": found.status.value}
    row |= {"evaluations": found.cost.gradient_evaluations, "message": found.message, "left": found.objective}
    row["features"] = [[one.layer, len(one.maps), one.error, one.certified] for one in found.features]
    return row | scored(found, batch)


def scored(found: Reconstruction, truth: Batch) -> dict[str, Any]:
    """Decibels of each true photo, one to one, and how many are certified."""
    psnr = [0.0] * len(truth)
    if found.inputs is not None:
        gaps = (found.inputs.double()[:, None] - truth.inputs.double()[None]).square().flatten(2).mean(2)
        for i, j in zip(*linear_sum_assignment(gaps.numpy()), strict=True):
            psnr[j] = round(float(-10 * gaps[i, j].clamp_min(1e-16).log10()), 1)
    return {"psnr": psnr, "certified": 0 if found.certified is None else int(found.certified.sum())}


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Each claim beside what was measured."""
    yield "| network | batch | mode | runs | median dB | least | share | asked | certified | CPU s |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (name, batch, mode), (least, share) in CLAIMS.items():
        for attacker in ATTACKERS:
            own = [
                r for r in rows if (r["network"], r["batch"], r["mode"], r["attacker"]) == (name, batch, mode, attacker)
            ]
            if own:
                psnr = [value for r in own for value in r["psnr"]]
                met = sum(value >= least for value in psnr) / len(psnr)
                middle = statistics.median(psnr)
                yield (
                    f"| {name}{f', {attacker}' * (attacker != 'features')} | {batch} | {mode} | {len(own)} "
                    f"| {middle:.1f} | {min(psnr):.1f} "
                    f"| {met:.2f} at {least:.0f} dB | {share} | {sum(r['certified'] for r in own)} of {len(psnr)} "
                    f"| {statistics.median(r['seconds'] for r in own):.0f} |"
                )


def main() -> None:
    """Runs what is missing, or prints the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--data", type=Path, help="CIFAR-10's test file")
    asked.add_argument("--pictures", type=Path, help="the ImageNet sample")
    asked.add_argument("--weights", type=Path, help="of the trained ResNet-18 of width 32, as safetensors")
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--attack", nargs="*", default=["features"], choices=ATTACKERS)
    asked.add_argument("--runs", type=int, default=RUNS)
    asked.add_argument("--seconds", type=float, default=SECONDS)
    asked.add_argument("--only", nargs="*", default=[""], help="network/batch/mode, or how they begin")
    asked.add_argument("--table", action="store_true")
    given = asked.parse_args()
    rows = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table:
        print("\n".join(table(rows)))
        return
    Compute(threads=1).apply()
    done = {Case(**{k: r[k] for k in ("network", "batch", "mode", "index", "attacker")}) for r in rows}
    sources = {HELD_OUT: Parquet(path=str(given.data)), PICTURES: Parquet(path=str(given.pictures), size=224)}
    for case in cases(tuple(given.attack), given.runs):
        if case in done or not f"{case.network}/{case.batch}/{case.mode}".startswith(tuple(given.only)):
            continue
        row = ran(case, sources[case.pool], given.weights, given.seconds)
        with given.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
