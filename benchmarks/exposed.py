"""What `auto` reads exactly: `python benchmarks/exposed.py --data cifar10-test.parquet --out rows.jsonl [--table]`.

One FedSGD update a row, pictures from 7000 on, labels not given, at most 600 gradient evaluations. A row is written
after each run; a run whose row is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.data import Parquet, spec
from leakgauge.defenses import Clip, Defense
from leakgauge.draws import Draws
from leakgauge.metrics.likeness import assign
from leakgauge.metrics.metric import PSNR
from leakgauge.models import mlp
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task


class Transformer(nn.Module):
    """A small vision transformer as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 64, 8, 8)
        self.where = nn.Parameter(0.02 * torch.randn(16, 64))
        self.block = nn.TransformerEncoderLayer(64, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.where
        out: Tensor = self.head(self.block(tokens).mean(1))
        return out


ROWS: dict[str, tuple[Callable[[], nn.Module], int, bool, Defense | None]] = {
    "MLP 3072-1000-10, batch 32": (lambda: mlp(hidden=(1000,)), 32, True, None),
    "MLP 3072-1000-10, batch 128": (lambda: mlp(hidden=(1000,)), 128, True, None),
    "the same, batch 32, clipped to .01": (lambda: mlp(hidden=(1000,)), 32, True, Clip(norm=0.01)),
    "sigmoid MLP 64-64, batch 8": (lambda: mlp(hidden=(64, 64), activation="sigmoid"), 8, False, None),
    "sigmoid MLP 64-64, batch 32": (lambda: mlp(hidden=(64, 64), activation="sigmoid"), 32, False, None),
    "ReLU MLP 64, batch 8": (lambda: mlp(hidden=(64,)), 8, False, None),
    "ReLU MLP 128, batch 16": (lambda: mlp(hidden=(128,)), 16, False, None),
    "ReLU MLP 256, batch 16": (lambda: mlp(hidden=(256,)), 16, False, None),
    "MLP 64 without bias, batch 1": (lambda: mlp(hidden=(64,), bias=False), 1, False, None),
    "vision transformer, batch 1": (Transformer, 1, False, None),
    "vision transformer, batch 2": (Transformer, 2, False, None),
}
"""Name → network, batch, whether inputs are in [0, 1] instead of normalised, defence."""


def run(source: Parquet, name: str) -> dict[str, Any]:
    """One update."""
    build, size, plain, defense = ROWS[name]
    data = spec(source)
    if plain:
        data = replace(data, mean=(0.0,) * 3, std=(1.0,) * 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(build().double(), data)
    batch = source.read(list(range(7000, 7000 + size)))
    batch = replace(batch, inputs=batch.inputs.double())
    update = client_update(task, FedSGD(), batch, Draws(0), defense=defense)
    known = Knowledge(example_count=size, local_training=FedSGD(), defense=defense)
    began = time.process_time()
    budget = Budget(gradient_evaluations=600)
    found = Auto().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0), budget=budget)
    seconds = time.process_time() - began
    assert found.inputs is not None
    pairs = assign(found.inputs, batch.inputs, labels_hat=found.labels, labels=batch.labels)
    scores = PSNR()(pairs.take(found.inputs).double(), batch.inputs).tolist()
    proved = found.status.value == "exact"
    certified = size if proved else 0 if found.certified is None else int(found.certified.sum())
    return {
        "row": name,
        "batch": size,
        "certified": certified,
        "lowest": round(min(scores), 1),
        "mean": round(sum(scores) / len(scores), 1),
        "cpu_seconds": round(seconds, 1),
        "tried": [f"{t.name}: {t.status.value} {t.why}" for t in found.tried],
    }


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {r["row"] for r in rows}
    if not asked.table:
        source = Parquet(path=asked.data)
        for name in ROWS:
            if name not in done:
                rows.append(run(source, name))
                with asked.out.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
    print("| update | certified | lowest dB | mean dB | CPU s |\n|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['row']} | {r['certified']} of {r['batch']} | {r['lowest']} | {r['mean']} | {r['cpu_seconds']} |")


if __name__ == "__main__":
    main()
