"""Steps a second, time to 20 dB and memory on a device, step by step and recorded: `make bench-gpu`.

`python benchmarks/gpu.py [--device cpu --quick]` prints a table and appends its rows to `--out`. Signed Adam, cosine
distance and total variation; on LeNet `auto` too, to 20 dB. On a GPU the recorded step is a CUDA graph. It stops after
`--minutes`, says what it left out, and a network that fails is a row with its reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.attacks.matching import Adam, Matching, Pixels, TotalVariation, Uniform
from leakgauge.attacks.recipes import Auto, ci_net
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Samples, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import lenet, resnet18, resnet20
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Step
from leakgauge.task import Batch, Task

sys.path.insert(0, str(Path(__file__).parents[1]))
from reproduce.resnets import resnet18_imagenet


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        generator: attacked by CI-Net, of `width`.
        few: the batch of a quick run.
    """

    name: str
    build: Callable[[], nn.Module]
    size: int = 32
    batch: int = 1
    restarts: int = 1
    generator: bool = False
    width: int | None = None
    few: int = 1


ROWS = (
    Row("lenet", lenet),
    Row("lenet", lenet, restarts=32),
    Row("resnet20", resnet20),
    Row("resnet20", resnet20, restarts=8),
    Row("resnet18", resnet18),
    Row("resnet18", lambda: resnet18_imagenet(classes=10), size=224),
    Row("ci-net on lenet", lenet, batch=128, generator=True, few=2),
)


def observed(row: Row, batch: int) -> tuple[Observation, Batch]:
    """The update of `batch` photos, labels given, and the photos."""
    source = Samples(size=row.size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(row.build(), spec(source))
    photos = source.read([i % len(source) for i in range(batch)])
    update = client_update(task, FedSGD(), photos, Draws(0))
    knowledge = Knowledge(labels=photos.labels, example_count=batch, local_training=FedSGD())
    return Observation(task, update, knowledge), photos


def searching(row: Row, steps: int) -> Attack:
    """The attack whose steps are timed."""
    if row.generator:
        return ci_net(steps=steps, width=row.width)
    prior, first = TotalVariation(1e-2), Pixels(first=Uniform())
    return Matching(prior=prior, canvas=first, minimiser=Adam(steps=steps), restarts=row.restarts)


class Clock:
    """Seconds of the steps after the first few, in which libraries choose and the step is recorded."""

    def __init__(self, device: str, warm: int) -> None:
        self._device, self._warm = device, warm
        self.began = self.ended = 0.0
        self.steps = 0

    def __call__(self, step: Step) -> bool:
        if step.index >= self._warm:
            self.ended = now(self._device)
            self.began = self.began or self.ended
            self.steps = step.index - self._warm
        return False


def now(device: str) -> float:
    """The time when the device has done its work; of the processor on a CPU."""
    if device != "cuda":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measured(row: Row, device: str, steps: int, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Twice."""
    batch = row.few if quick else row.batch
    seen, _ = observed(row, batch)
    for _ in range(2):
        clock = Clock(device, warm=4)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        budget = Budget(gradient_evaluations=steps * row.restarts)
        found = searching(row, steps).reconstruct(
            seen,
            torch.Generator().manual_seed(0),
            budget=budget,
            compute=Compute(device=device),
            on_step=clock,
        )
        yield {
            "network": row.name,
            "size": row.size,
            "batch": batch,
            "restarts": row.restarts,
            "evaluations_a_second": round(row.restarts * clock.steps / max(clock.ended - clock.began, 1e-9), 2),
            "peak_mib": torch.cuda.max_memory_allocated() // 2**20 if device == "cuda" else None,
            "objective": found.objective,
            "status": found.status.value,
        }


def to_20_db(device: str) -> dict[str, Any]:
    """`auto` on LeNet, and the seconds until its answer is at 20 dB, found by halving the evaluations it may spend."""
    seen, photos = observed(ROWS[0], 1)

    def run(evaluations: int) -> Reconstruction:
        until = Budget(gradient_evaluations=600)
        stop: Callable[[Step], bool] = lambda step: step.gradient_evaluations >= evaluations  # noqa: E731
        compute = Compute(device=device)
        return Auto().reconstruct(seen, torch.Generator().manual_seed(0), budget=until, compute=compute, on_step=stop)

    for evaluations in (50, 100, 200, 400, 600):
        began = now(device)
        found = run(evaluations)
        spent = now(device) - began
        if found.inputs is not None and float(PSNR()(found.inputs.float(), photos.inputs)) >= 20:
            break
    return {"network": "lenet, auto to 20 dB", "seconds": round(spent, 3), "evaluations": evaluations}


def main() -> None:
    """Measures, prints, appends."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few steps, small batches, 32 px")
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--networks", nargs="+", help="names of rows; default: all")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.jsonl")
    given = parser.parse_args()
    Compute(device=given.device).apply()
    name = torch.cuda.get_device_name() if given.device == "cuda" else given.device
    began = time.perf_counter()

    def write(row: dict[str, Any]) -> None:
        row = {"device": name, "torch": torch.__version__, "quick": given.quick, **row}
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(" ".join(f"{k}={v}" for k, v in row.items() if k not in ("torch", "quick")), flush=True)

    for row in ROWS:
        if (given.networks and row.name not in given.networks) or (given.quick and row.size > 32):
            continue
        case = replace(row, width=8) if given.quick else row
        if time.perf_counter() - began > 60 * given.minutes:
            print(f"{row.name}, {row.size} px, {row.restarts} restarts: left out, the time is over")
            continue
        try:
            for line in measured(case, given.device, 10 if given.quick else 60, quick=given.quick):
                write(line)
        except RuntimeError as error:  # out of memory and what else a device says
            write({"network": row.name, "size": row.size, "restarts": row.restarts, "error": str(error)[:200]})
    if not given.quick:
        write(to_20_db(given.device))


if __name__ == "__main__":
    main()
