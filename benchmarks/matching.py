"""What a matching step costs and what batching saves: `python benchmarks/matching.py [--json FILE]`.

Ratios within one run, medians over repetitions, one thread: absolute times of two machines do not compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from leakgauge.attacks.matching import Adam, BoundedLBFGS, Cosine, Matching, Pixels, TotalVariation, Uniform
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Samples, spec
from leakgauge.draws import Draws
from leakgauge.models import convnet, lenet, resnet20
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task

NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "lenet": lenet,
    "convnet-8": lambda: convnet(width=8),
    "resnet20-8": lambda: resnet20(width=8),
}


def observation(build: Callable[[], torch.nn.Module]) -> Observation:
    """One photo under FedSGD, label given."""
    source = Samples(size=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(build(), spec(source))
    batch = source.read([0])
    update = client_update(task, FedSGD(), batch, Draws(0))
    return Observation(task, update, Knowledge(labels=batch.labels, local_training=FedSGD()))


def seconds(run: Callable[[], object], repetitions: int = 5) -> float:
    """Median wall time after one warm-up."""
    run()
    times = []
    for _ in range(repetitions):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def matching(minimiser: Adam | BoundedLBFGS, restarts: int = 1) -> Matching:
    """The parts that `auto` uses."""
    prior = TotalVariation(1e-3, smoothing=1e-6)
    return Matching(
        objective=Cosine(), prior=prior, canvas=Pixels(first=Uniform()), minimiser=minimiser, restarts=restarts
    )


def measure(name: str) -> dict[str, object]:
    """Forward and backward, a matching step, and steps of 8 restarts side by side, for one network."""
    seen = observation(NETWORKS[name])
    task, steps = seen.task, 5
    batch = Samples(size=32).read([0])
    gradient = seconds(lambda: client_update(task, FedSGD(), batch, Draws(0)), 9)

    def step(restarts: int) -> float:
        attack = matching(Adam(steps=steps), restarts)
        budget = Budget(gradient_evaluations=steps * restarts)
        return seconds(lambda: attack.reconstruct(seen, torch.Generator().manual_seed(0), budget=budget)) / steps

    one, eight = step(1), step(8)
    return {
        "network": name,
        "step_over_gradient": round(one / gradient, 2),
        "speedup_of_8_restarts_side_by_side": round(8 * one / eight, 2),
        "milliseconds_a_step": round(1000 * one, 2),
    }


def main() -> None:
    """Prints one row a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    Compute().apply()
    rows = [measure(name) for name in NETWORKS]
    for row in rows:
        print(row)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
