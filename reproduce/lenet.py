"""What single-image attacks reach on an untrained LeNet: `python -m reproduce.lenet ROW [--data FILE]`.

First ten images of CIFAR-10's test set (a JPEG re-encoding), three weight seeds, one thread. Rows: see ROWS.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.recipes import Auto, dlg, inverting_gradients
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parquet, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import lenet, mlp
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from reproduce.rows import Row

SEEDS = (0, 1, 2)


def task(module: Callable[[], torch.nn.Module], data: DataSpec, seed: int) -> Task:
    """The untrained network of a weight seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task.of(module(), data)


def sweep(
    row: str,
    attack: Attack,
    source: Parquet,
    images: Sequence[int],
    *,
    seeds: Sequence[int] = SEEDS,
    protocol: Protocol | None = None,
    labels: bool = True,
    claimed: str | None = None,
    doubt: str = "",
    module: Callable[[], torch.nn.Module] = lenet,
    dtype: torch.dtype = torch.float32,
) -> Row:
    """One attack on every image and seed, one image a client."""
    protocol = protocol or FedSGD()
    data = spec(source)
    scores: list[list[float]] = [[] for _ in images]
    evaluations, began, right = 0, time.perf_counter(), 0
    for seed in seeds:
        model = task(module, data, seed).to(torch.empty((), dtype=dtype))
        for slot, image in enumerate(images):
            truth = source.read([image])
            batch = Batch(truth.inputs.to(dtype), truth.labels)
            update = client_update(model, protocol, batch, Draws(seed))
            knowledge = Knowledge(labels=batch.labels if labels else None, example_count=1, local_training=protocol)
            generator = torch.Generator().manual_seed(1000 * seed + image)
            found = attack.reconstruct(Observation(model, update, knowledge), generator, compute=Compute(dtype=dtype))
            evaluations += found.cost.gradient_evaluations
            score = 0.0 if found.inputs is None else float(PSNR()(found.inputs.to(dtype), batch.inputs))
            right += found.labels is not None and bool((found.labels == batch.labels).all())
            scores[slot].append(score)
            print(f"{row} seed {seed} image {image}: {score:.2f} dB, {found.status.value}, {found.cost}", flush=True)
    seconds = time.perf_counter() - began
    total = len(seeds) * len(images)
    note = doubt if labels else f"{doubt}; label right in {right} of {total}".lstrip("; ")
    return Row(
        paper="main-job",
        row=row,
        setting=f"{module.__name__} untrained, first {len(images)} of cifar10-test, {protocol}, "
        f"labels {'given' if labels else 'unknown'}",
        attack=repr(attack),
        metric="PSNR per image, dB, data range 1",
        claimed=claimed,
        per_image=scores,
        seeds=list(seeds),
        gradient_evaluations=evaluations // total,
        seconds=round(seconds / total, 3),
        doubt=note,
    )


TEN = range(10)
FEDAVG = FedAvg(epochs=5, lr=0.01)

ROWS: dict[str, Callable[[Parquet, Parquet], Row]] = {
    "closed-form-float32": lambda s, _: sweep("closed-form-float32", LinearRead(), s, TEN, module=mlp),
    "closed-form-float64": lambda s, _: sweep(
        "closed-form-float64", LinearRead(), s, TEN, module=mlp, dtype=torch.float64
    ),
    "inverting-gradients": lambda s, _: sweep(
        "inverting-gradients", inverting_gradients(), s, TEN, claimed="18.00 +- 3.33 (100 images, Table 1)"
    ),
    "inverting-gradients-no-tv": lambda s, _: sweep("inverting-gradients-no-tv", inverting_gradients(tv=0.0), s, TEN),
    "auto": lambda s, _: sweep("auto", Auto(), s, TEN),
    "dlg": lambda _, raw: sweep(
        "dlg", dlg(restarts=8), raw, range(3), labels=False, doubt="images in [0, 1] without normalisation, as DLG"
    ),
    "auto-fedsgd-one": lambda s, _: sweep("auto-fedsgd-one", Auto(), s, range(3)),
    "auto-fedavg-one": lambda s, _: sweep("auto-fedavg-one", Auto(), s, range(3), protocol=FEDAVG),
    "ig-fedsgd-one": lambda s, _: sweep("ig-fedsgd-one", inverting_gradients(), s, range(1)),
    "ig-fedavg-one": lambda s, _: sweep("ig-fedavg-one", inverting_gradients(), s, range(1), protocol=FEDAVG),
}


def main() -> None:
    """Runs the rows named and saves each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="+", choices=[*ROWS, "all"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/cifar10-test.parquet"))
    arguments = parser.parse_args()
    Compute().apply()
    source = Parquet(path=str(arguments.data))
    raw = Parquet(path=str(arguments.data), normalise=False)
    for name in ROWS if "all" in arguments.rows else arguments.rows:
        row = ROWS[name](source, raw)
        print(row.save().name, row.record()["measured"], row.doubt)


if __name__ == "__main__":
    main()
