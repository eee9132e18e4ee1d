"""How well label counts are read: `python -m reproduce.labels [--data FILE]`.

Eight CIFAR-10 test images with repeated labels (drawn with replacement from four classes), 20 seeds of weights and
batches, untrained networks, labels unknown, example count and local training known. Beside it the same reader that
is given the client's own images in place of stand-ins: what is left is the unknown order of the examples.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import label_f1, label_f1_by_prior
from leakgauge.models import convnet, lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, Task
from reproduce.rows import Row

NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {"lenet": lenet, "convnet-16": lambda: convnet(width=16)}
PROTOCOLS: dict[str, Protocol] = {
    "fedsgd": FedSGD(),
    "fedavg-4-steps": FedAvg(epochs=1, batch_size=2, lr=0.01),
    "fedavg-5-epochs": FedAvg(epochs=5, lr=0.01),
}
SEEDS = range(4000, 4020)  # the method was chosen on 2000 to 2015 and below


def client(source: Parquet, seed: int) -> Batch:
    """Eight images of four classes, with repeats."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randperm(10, generator=generator)[:4]
    wanted = classes[torch.randint(4, (8,), generator=generator)]
    pools = {int(c): (source.labels == c).nonzero().flatten() for c in classes}
    picks = [pools[int(c)][torch.randint(len(pools[int(c)]), (), generator=generator)] for c in wanted]
    return source.read([int(i) for i in picks])


def measure(source: Parquet, network: str, protocol: str, *, oracle: bool) -> Row:
    """Multiset F1 of one network and protocol; the oracle's stand-ins are the client's own images."""
    scores, confidences, guessed, began = [], [], [], time.perf_counter()
    for seed in SEEDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            task = Task.of(NETWORKS[network](), spec(source))
        batch = client(source, seed)
        update = client_update(task, PROTOCOLS[protocol], batch, Draws(seed))
        known = Knowledge(example_count=8, local_training=PROTOCOLS[protocol])
        seen = Observation(
            task, update, replace(known, public_data=batch.inputs.repeat(8, 1, 1, 1)) if oracle else known
        )
        guess = CountsFromLastLayer().infer(seen, torch.Generator().manual_seed(seed))
        found = None if isinstance(guess, Unknown) else guess
        scores.append(label_f1(found.labels if found else None, batch.labels, 10))
        confidences.append(found.confidence if found else 0.0)
        guessed.append(label_f1_by_prior(batch.labels, torch.full((10,), 0.1), 8))
    return Row(
        paper="main-job",
        row=f"labels-{network}-{protocol}" + ("-oracle" if oracle else ""),
        setting=f"{network} untrained, 8 images of 4 classes with repeats, {PROTOCOLS[protocol]}",
        attack="CountsFromLastLayer()" + (", given the client's own images" if oracle else ""),
        metric="multiset F1 of a client",
        claimed=None,
        per_image=[[score] for score in scores],
        seeds=list(SEEDS),
        gradient_evaluations=0,
        seconds=round((time.perf_counter() - began) / len(SEEDS), 3),
        doubt=f"mean confidence {statistics.fmean(confidences):.3f}; "
        f"guessing from the class prior {statistics.fmean(guessed):.3f}",
    )


def main() -> None:
    """Runs and saves every network and protocol."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/cifar10-test.parquet"))
    arguments = parser.parse_args()
    Compute().apply()
    source = Parquet(path=str(arguments.data))
    for network in NETWORKS:
        for protocol in PROTOCOLS:
            for oracle in (False, True):
                row = measure(source, network, protocol, oracle=oracle)
                print(row.save().name, row.record()["measured"], row.doubt, f"{row.seconds} s", flush=True)


if __name__ == "__main__":
    main()
