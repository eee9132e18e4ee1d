"""BatchNorm statistics beside the update: `python benchmarks/batch_statistics.py --data F --out rows.jsonl [--table]`.

ConvNet-16 in train mode, four pictures of CIFAR-10, labels given. `auto` with the statistics at several weights (0: not
used), and its control: the same attack whose data term is deleted (a weight of the objective of zero). A row is
written after each run; a run whose row is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks.matching import Cosine, Objective
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, raw_update
from leakgauge.compute import Budget
from leakgauge.data import Parquet, spec
from leakgauge.defenses import AttackerView, NoDefense
from leakgauge.draws import Draws
from leakgauge.metrics.assignment import assign
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Mode, Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

EXAMPLES = 4


@dataclass(frozen=True)
class Deaf(Objective):
    """The cosine, of which nothing is heard."""

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Tensor:
        return 0 * Cosine()(simulated, observed, view)


def run(source: Parquet, first: int, weight: float, prior_only: bool, evaluations: int) -> dict[str, Any]:
    """One client."""
    batch = source.read(list(range(first, first + EXAMPLES)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(first)
        task = replace(Task.of(convnet(width=16), spec(source)), mode=Mode.TRAIN)
    sent, after = raw_update(task, FedSGD(), batch, Draws(0), NoDefense())
    update = Update({k: v.detach() for k, v in sent.items()}, UpdateHeader(UpdateKind.GRADIENT, EXAMPLES))
    known = Knowledge(labels=batch.labels, local_training=FedSGD(), buffers=after)
    seen = Observation(task, update, known)
    generator = torch.Generator().manual_seed(0)
    attack = replace(Auto().choice(task, generator, evaluations=evaluations, examples=EXAMPLES), statistics=weight)
    if prior_only:
        attack = replace(attack, objective=Deaf())
    began = time.process_time()
    found = attack.reconstruct(seen, generator, budget=Budget(gradient_evaluations=evaluations))
    assert found.inputs is not None
    pairs = assign(found.inputs, batch.inputs, labels_hat=found.labels, labels=batch.labels)
    scores = PSNR()(pairs.take(found.inputs).double(), batch.inputs.double()).tolist()
    return {
        "first": first,
        "weight": weight,
        "prior_only": prior_only,
        "evaluations": evaluations,
        "psnr": [round(v, 2) for v in scores],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Mean PSNR by weight."""
    for weight, alone in sorted({(r["weight"], r["prior_only"]) for r in rows}):
        own = [statistics.mean(r["psnr"]) for r in rows if (r["weight"], r["prior_only"]) == (weight, alone)]
        yield f"weight {weight:g}{', no data term' * alone}: {statistics.mean(own):.2f} dB, {len(own)} clients"


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=int, default=6000)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--evaluations", type=int, default=150)
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.1, 1.0])
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(r["first"], r["weight"], r["prior_only"], r["evaluations"]) for r in rows}
    if not asked.table:
        source = Parquet(path=asked.data)
        for index in range(asked.clients):
            for weight in asked.weights:
                key = (asked.start + EXAMPLES * index, weight, False, asked.evaluations)
                if key not in done:
                    rows.append(run(source, *key))
                    with asked.out.open("a") as out:
                        out.write(json.dumps(rows[-1]) + "\n")
    print("\n".join(lines(rows)))


if __name__ == "__main__":
    main()
