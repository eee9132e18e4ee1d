"""FedAvg of unknown order: `python benchmarks/orders.py --data cifar10-test.parquet --out rows.jsonl [--table]`.

LeNet, four local steps of one picture, learning rate .1. Three attackers at equal gradient evaluations: `auto` that is
told the order (`ordered`), `auto`, which finds it, and the search of `auto` with an order drawn at random (`plain`);
all are given the multiset of labels. A row is written after each run; a run whose row is there is not repeated. Rows of
clients 5000 to 5028 are of the search by races, before the last layer's steps were read; `ordered` had no start there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leakgauge.attacks.recipes import Auto
from leakgauge.attacks.recipes.auto import Search
from leakgauge.clients import FedAvg, client_update
from leakgauge.compute import Budget
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.intervals import mean_interval
from leakgauge.metrics.likeness import assign
from leakgauge.metrics.metric import PSNR
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task

CLIENT = FedAvg(epochs=1, batch_size=1, lr=0.1, shuffle=True)
ATTACKERS = ("ordered", "auto", "plain")
EXAMPLES = 4


def run(source: Parquet, first: int, attacker: str, evaluations: int) -> dict[str, Any]:
    """One client, whose first picture is `first`, and one attacker."""
    batch = source.read(list(range(first, first + EXAMPLES)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(first)
        task = Task.of(lenet(), spec(source))
    draws = Draws(first)
    visited = batch.labels[torch.cat(CLIENT.order(EXAMPLES, draws))]
    known = Knowledge(batch.labels, EXAMPLES, CLIENT)
    if attacker == "ordered":
        known = Knowledge(visited, EXAMPLES, replace(CLIENT, shuffle=False))
    seen = Observation(task, client_update(task, CLIENT, batch, draws), known)
    attack = Search(Auto()) if attacker == "plain" else Auto()
    began = time.process_time()
    budget = Budget(gradient_evaluations=evaluations)
    found = attack.reconstruct(seen, torch.Generator().manual_seed(0), budget=budget)
    assert found.inputs is not None
    assert found.labels is not None
    pairs = assign(found.inputs, batch.inputs, labels_hat=found.labels, labels=batch.labels)
    scores = PSNR()(pairs.take(found.inputs).double(), batch.inputs.double()).tolist()
    return {
        "first": first,
        "attacker": attacker,
        "evaluations": evaluations,
        "psnr": [round(v, 2) for v in scores],
        "distance": found.objective,
        "order_found": attacker != "plain" and found.labels.tolist() == visited.tolist(),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Mean PSNR and its 95 % interval over clients, and how many orders were found."""
    lines = []
    for attacker in ATTACKERS:
        own = [r for r in rows if r["attacker"] == attacker]
        if own:
            means = [statistics.mean(r["psnr"]) for r in own]
            around = mean_interval(means)
            between = "" if around.low is None else f" [{around.low:.1f}, {around.high:.1f}]"
            found = sum(r["order_found"] for r in own)
            lines.append(f"{attacker}: {statistics.mean(means):.1f} dB{between}, {len(own)} clients, {found} orders")
    return lines


def main() -> None:
    """Runs what has no row yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--evaluations", type=int, default=2400)
    parser.add_argument("--attackers", nargs="+", default=list(ATTACKERS), choices=ATTACKERS)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    done = {(r["first"], r["attacker"], r["evaluations"]) for r in rows}
    if not asked.table:
        source = Parquet(path=asked.data)
        for index in range(asked.clients):
            for attacker in asked.attackers:
                key = (asked.start + EXAMPLES * index, attacker, asked.evaluations)
                if key not in done:
                    rows.append(run(source, *key))
                    with asked.out.open("a") as out:
                        out.write(json.dumps(rows[-1]) + "\n")
    shown = range(asked.start, asked.start + EXAMPLES * asked.clients)
    chosen = [r for r in rows if r["evaluations"] == asked.evaluations and r["first"] in shown]
    print("\n".join(table(chosen)))


if __name__ == "__main__":
    main()
