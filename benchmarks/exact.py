"""Peeling and what the replay of the mask says: `python benchmarks/exact.py --data F --out rows.jsonl [--table]`.

One FedSGD update of an MLP 3072–N–10 on pictures of CIFAR-10. A row is written after each run; a run whose row is there
is not repeated. *Read*: above 45 dB. `cells` hold the attack without its search for sparse directions against the
replay; `changes` what an update can bear; `seeds` ten batches of 128; `masks` the replay alone on a hundred.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.exact import Peeling
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.data import Parquet, spec
from leakgauge.defenses import Clip, Defense, TopK, noise
from leakgauge.draws import Draws
from leakgauge.metrics.likeness import pairwise_mse
from leakgauge.models import mlp
from leakgauge.observation import Knowledge, Observation
from leakgauge.risk.count import Replay, replay
from leakgauge.task import Batch, Task
from leakgauge.update import Update

EXACT = 10 ** (-45 / 10)
"""Mean squared error of an exact read."""

TYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

CHANGES: dict[str, tuple[Protocol, Defense | None]] = {
    "none": (FedSGD(), None),
    "top-k .99": (FedSGD(), TopK(keep=0.99)),
    "noise 1e-6": (FedSGD(), noise(relative=1e-6)),
    "noise 1e-5": (FedSGD(), noise(relative=1e-5)),
    "noise 1e-4": (FedSGD(), noise(relative=1e-4)),
    "noise 1e-3": (FedSGD(), noise(relative=1e-3)),
    "clip .1": (FedSGD(), Clip(norm=0.1)),
    "clip .001": (FedSGD(), Clip(norm=0.001)),
    "delta lr .1": (FedAvg(lr=0.1), None),
    "delta lr .01": (FedAvg(lr=0.01), None),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One update.

    Attributes:
        item: of the table.
        units, batch, seed: of the first layer, the client, and weights and pictures.
        wire: format that the client sends and computes in.
        weights: standard deviation of normal weights; 0 for torch's default ones.
        centred: inputs (x − .5) / .25 instead of [0, 1].
        change: of `CHANGES`.
        epochs: of training before (Adam on 2 000 other pictures).
        twice: pictures that are in the batch a second time.
        directions: left examples up to which sparse directions are searched for.
    """

    item: str
    units: int = 1000
    batch: int = 32
    seed: int = 0
    wire: str = "float64"
    weights: float = 0.0
    centred: bool = False
    change: str = "none"
    epochs: int = 0
    twice: int = 0
    directions: int = 0


def cells() -> Iterator[Cell]:
    """All of them, by item."""
    for units in (100, 300, 1000):
        for batch in (8, 16, 32, 64):
            for wire in ("float64", "float32"):
                for centred in (False, True):
                    yield Cell(item="cells", units=units, batch=batch, wire=wire, centred=centred, seed=units + batch)
    for batch in (32, 64):
        for wire in ("float64", "float32"):
            yield Cell(item="cells", batch=batch, wire=wire, weights=0.5, seed=batch)
    for change in CHANGES:
        yield Cell(item="changes", change=change, wire="float32", directions=20)
    for wire in ("float16", "bfloat16"):
        yield Cell(item="changes", wire=wire, batch=8, directions=20)
    for twice in (1, 4):
        yield Cell(item="changes", twice=twice, wire="float32", directions=20)
    for epochs in (1, 5):
        for centred in (False, True):
            yield Cell(item="changes", epochs=epochs, centred=centred, wire="float32", directions=20)
    for seed in range(10):
        yield Cell(item="seeds", batch=128, seed=seed, directions=20)


def made(cell: Cell, path: str) -> tuple[Task, Batch]:
    """The network and the client's pictures."""
    source = Parquet(path=path)
    middle, spread = (0.5, 0.25) if cell.centred else (0.0, 1.0)
    data = replace(spec(source), mean=(middle,) * 3, std=(spread,) * 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        network = mlp(hidden=(cell.units,), shape=data.shape)
        if cell.weights:
            for parameter in network.parameters():
                nn.init.normal_(parameter, std=cell.weights)
    first = 1000 + 150 * cell.seed % 8000
    batch = source.read(list(range(first, first + cell.batch)))
    if cell.twice:
        keep = torch.cat([torch.arange(cell.batch - cell.twice), torch.arange(cell.twice)])
        batch = batch.take(keep)
    dtype = torch.float64 if cell.wire == "float64" else torch.float32
    if cell.epochs:
        _train(network, source.read(list(range(2000))), data.normalise, cell.epochs)
    task = Task.of(network.to(dtype), data)
    return task, Batch(batch.inputs.to(dtype), batch.labels)


def _train(network: nn.Module, other: Batch, normalise: Callable[[Tensor], Tensor], epochs: int) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(epochs):
        for index in torch.randperm(len(other)).split(64):
            loss = nn.functional.cross_entropy(network(normalise(other.inputs[index])), other.labels[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()


def run(cell: Cell, path: str) -> dict[str, Any]:
    """The attack and the replay on one update."""
    protocol, defense = CHANGES[cell.change]
    torch.manual_seed(cell.seed)
    task, batch = made(cell, path)
    update = client_update(task, protocol, batch, Draws(cell.seed), defense=defense)
    wire = TYPES[cell.wire]
    if cell.wire in ("float16", "bfloat16"):
        update = Update({k: v.to(wire).to(v) for k, v in update.tensors.items()}, update.header)
    known = Knowledge(example_count=len(batch), local_training=protocol, defense=defense)
    began = time.process_time()
    attack = Peeling(directions=cell.directions)
    found = attack.reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))
    seconds = time.process_time() - began
    certified, read, wrong = 0, 0, 0
    if found.inputs is not None:
        near = pairwise_mse(found.inputs.double(), batch.inputs.double()) < EXACT
        read = int(near.any(0).sum())
        if found.certified is not None:
            certified = int(found.certified.sum())
            wrong = int((found.certified & ~near.any(1)).sum())
    began = time.process_time()
    told = replay(task, batch, torch.Generator().manual_seed(0), wire=wire)
    return {
        **asdict(cell),
        "read": read,
        "certified": certified,
        "wrong": wrong,
        "cpu_seconds": round(seconds, 2),
        "replay": told.read if isinstance(told, Replay) else str(told),
        "alone": told.alone if isinstance(told, Replay) else None,
        "replay_seconds": round(time.process_time() - began, 2),
        "message": found.message,
    }


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What the rows say."""
    own = [r for r in rows if r["item"] == "cells"]
    if own:
        gaps = [abs(r["read"] - r["replay"]) / r["batch"] for r in own]
        inside, slowest = sum(g <= 0.01 for g in gaps), max(r["replay_seconds"] for r in own)
        yield f"cells: {inside} of {len(own)} within .01, largest gap {max(gaps):.3f}; slowest replay {slowest} CPU s"
    for r in rows:
        if r["item"] == "changes":
            words = ", ".join(f"{k} {r[k]}" for k in ("wire", "batch", "change", "epochs", "centred", "twice"))
            yield f"{words}: {r['read']} read, {r['certified']} certified, {r['wrong']} wrong; replay {r['replay']}"
    own = [r for r in rows if r["item"] == "seeds"]
    if own:
        shares = [r["read"] / r["batch"] for r in own]
        yield f"seeds: mean {statistics.mean(shares):.3f} of {len(own)}, lowest {min(shares):.3f}, wrong " + str(
            sum(r["wrong"] for r in own)
        )


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--items", nargs="+", default=["cells", "changes", "seeds"])
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = [Cell(**{k: r[k] for k in Cell.__dataclass_fields__}) for r in rows]
    for cell in cells():
        if not asked.table and cell.item in asked.items and cell not in done:
            rows.append(run(cell, asked.data))
            with asked.out.open("a") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
