"""What is read of rounds of several steps and of secure sums: `python benchmarks/convolution_rounds.py --data F
--weights W --out rows.jsonl`, with the photos and seeds of convolutions.py, which were named before any run.

A row is written after each run, and a run whose row is there is not repeated. `--table` prints what is there.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from convolutions import SEEDS, network
from leakgauge.attacks.recipes import Features
from leakgauge.clients import FedAvg, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.face import attack
from leakgauge.observation import Knowledge, OnStep
from leakgauge.task import Batch, DataSpec, Task

ROUNDS: dict[str, Protocol] = {
    "8 in 2 steps, rate .01, momentum .9": FedAvg(batch_size=4, lr=0.01, momentum=0.9),
    "8 in 2 steps, rate .01": FedAvg(batch_size=4, lr=0.01),
    "8 in 2 steps, rate .1": FedAvg(batch_size=4, lr=0.1),
    "8 in 2 steps, rate .001, momentum .9": FedAvg(batch_size=4, lr=0.001, momentum=0.9),
    "8 in 4 steps, rate .01, momentum .9": FedAvg(batch_size=2, lr=0.01, momentum=0.9),
    "4 in 2 steps twice, rate .01, momentum .9": FedAvg(epochs=2, batch_size=2, lr=0.01, momentum=0.9),
    "4 in 2 steps twice, rate .1, momentum .9": FedAvg(epochs=2, batch_size=2, lr=0.1, momentum=0.9),
    "2 clients, 4 each in 2 steps, rate .01, momentum .9": SecureAggregation(
        cohort=2, client=FedAvg(batch_size=2, lr=0.01, momentum=0.9)
    ),
    "3 clients, 2 each in 1 step, rate .01": SecureAggregation(cohort=3, client=FedAvg(lr=0.01)),
    "4 clients, 2 each in 1 step, rate .01": SecureAggregation(cohort=4, client=FedAvg(lr=0.01)),
}
"""Clients on the trained ResNet-18 of width 32, batch statistics in train mode. Asked: what a layer was given of 95 %
of the examples at each step, to 1e-4 up to a factor, of a loop that is known and of one that is not."""

HELD_OUT = range(9420, 9700)
NEAR, SHOWN, RUNS = 1e-4, 25.0, range(3)
"""Photos 9420 to 9443, of which nothing was run before. Asked of a loop that is not known: the examples of first steps
at 25 dB in the median, in 200 seconds; of later ones what comes. On photos 9020 to 9067 no picture was looked for, on
9384 to 9391 none of later steps; 9392 to 9399 were looked at before settings changed
(results/convolution-rounds-*.jsonl)."""

READ, SECONDS = 20.0, 200.0  # of the process: where only features are asked, and where pictures are too


def first(client: Protocol, count: int) -> list[int]:
    """Examples that clients' first steps are of."""
    found, before = [], 0
    for part, own in client.clients(count):
        found += range(before, before + part.parts(own)[0])
        before += own
    return found


def given(network: nn.Module, batch: Batch, layer: str, client: Protocol, spec: DataSpec) -> Tensor:
    """What a layer is given at all steps of all clients in train mode [maps, entries], by torch's own SGD."""
    seen: list[Tensor] = []
    inputs, labels = spec.normalise(batch.inputs), batch.labels
    for part, count in client.clients(len(batch)):
        assert isinstance(part, LocalTraining)
        net = copy.deepcopy(network).train()
        net.get_submodule(layer).register_forward_pre_hook(lambda _m, it: seen.append(it[0].detach().double()))
        rule = part.optimiser
        sgd = torch.optim.SGD(net.parameters(), rule.lr, momentum=rule.momentum)  # type: ignore[attr-defined]
        first = 0
        for size in part.parts(count):
            rows = torch.arange(first, first + size) % count
            first += size
            net.zero_grad()
            nn.functional.cross_entropy(net(inputs[rows]), labels[rows]).backward()
            sgd.step()
        inputs, labels = inputs[count:], labels[count:]
    return torch.cat(seen).flatten(1)


def ran(name: str, index: int, source: Parquet, weights: Path | None, *, known: bool) -> dict[str, Any]:
    """One round or sum of rounds, and how near its layers' maps are to what the client's were given."""
    client = ROUNDS[name]
    count = 6 if name.startswith("3 clients") else 4 if name.startswith("4 in") else 8
    photos = [HELD_OUT[(8 * index + i) % len(HELD_OUT)] for i in range(count)]
    batch, net = source.read(photos), network("resnet18-32-trained", SEEDS[index % len(SEEDS)], weights)
    task = Task.of(net, spec(source), mode="train")
    update = client_update(task, client, batch, Draws(SEEDS[index % len(SEEDS)]))
    knows = Knowledge(local_training=client if known else None, example_count=count)
    began, limit = time.process_time(), READ if known else SECONDS
    ends: OnStep = lambda _: time.process_time() - began > limit  # noqa: E731
    found = attack(task, update, using=Features(), knows=knows, seed=SEEDS[index % len(SEEDS)], on_step=ends)
    row: dict[str, Any] = {"round": name, "known": known, "index": index, "photos": photos, "message": found.message}
    row |= {"seconds": round(time.process_time() - began, 1), "layers": []}
    for one in found.features:
        truth = given(net, batch, one.layer.removesuffix(".weight"), client, task.data)
        maps = one.maps.flatten(1)
        if maps.shape[1] == truth.shape[1] and one.maps.shape[2] > 1:
            ours, theirs = (m / m.norm(dim=1, keepdim=True) for m in (maps, truth))
            gaps = torch.cdist(theirs, ours).amin(1).tolist()
            row["layers"].append([one.layer, [float(f"{g:.1e}") for g in gaps], one.error, one.certified])
    row["maps"] = sum(client.parts(count))
    if found.inputs is not None and not known:
        gaps = torch.cdist(found.inputs.clamp(0, 1).flatten(1), batch.inputs.flatten(1)).square()
        pairs = zip(*linear_sum_assignment(gaps.numpy()), strict=True)
        numbers = batch.inputs[0].numel()
        row["pictures"] = [[int(j), round(float(-10 * (gaps[i, j] / numbers).log10()), 1)] for i, j in pairs]
        row["first"] = first(client, count)
    return row


def decibels(rows: list[dict[str, Any]], *, early: bool) -> str:
    """Median, least and most of the examples of clients' first steps, or of the others."""
    seen = [
        dict(r["pictures"]).get(i, 0.0) for r in rows for i in range(len(r["photos"])) if (i in r["first"]) is early
    ]
    return f"{statistics.median(seen):.1f}, {min(seen):.1f} to {max(seen):.1f}" if seen else "–"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Each client: the layer that came out best in each run, where the loop is known and where it is not; and pictures
    of first steps."""
    yield "| client | runs | share to 1e-4, loop known, unknown | worst | certified | first steps, dB | later | CPU s |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in ROUNDS:
        shares, worst, own = [], 0.0, [r for r in rows if r["round"] == name]
        for known in (True, False):
            some = [r for r in own if r["known"] is known]
            best = [min(r["layers"], key=lambda layer: max(layer[1]), default=None) for r in some]
            gaps = [g for r, layer in zip(some, best, strict=True) for g in (layer[1] if layer else [1.0] * r["maps"])]
            shares.append(f"{sum(g < NEAR for g in gaps) / len(gaps):.2f}" if gaps else "–")
            worst = max([worst, *gaps])
        if own:
            told, shown = [r for r in own if r["known"]], [r for r in own if "pictures" in r]
            sure = sum(any(layer[3] for layer in r["layers"]) for r in told)
            pictures = " | ".join(decibels(shown, early=early) for early in (True, False))
            seconds = statistics.median([r["seconds"] for r in own if not r["known"]] or [0.0])
            yield (
                f"| {name} | {len(own) - len(told)} | {', '.join(shares)} | {worst:.0e} "
                f"| {sure} of {len(told)} | {pictures} | {seconds:.0f} |"
            )


def main() -> None:
    """Runs what is missing, or prints the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", type=Path, help="CIFAR-10's test file")
    options.add_argument("--weights", type=Path, help="of the trained ResNet-18 of width 32, as safetensors")
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    if asked.table:
        print("\n".join(table(rows)))
        return
    Compute(threads=1).apply()
    done = {(row["round"], row["known"], row["index"]) for row in rows}
    source = Parquet(path=str(asked.data))
    for index, name, known in itertools.product(RUNS, ROUNDS, (True, False)):
        if (name, known, index) not in done:
            row = ran(name, index, source, asked.weights, known=known)
            with asked.out.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
