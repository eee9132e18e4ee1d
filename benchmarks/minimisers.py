"""Where each minimiser pays: `python benchmarks/minimisers.py --out rows.jsonl [--table]`.

One-core seconds and gradient evaluations to 15, 20, 25, 26 and 30 dB, one photo a client, labels given. A row is
written after each run, and a run whose row is there is not repeated. Seconds are those of the processor, so other
jobs on the machine matter little. Truth is known to this script alone: it watches the point with the lowest
objective so far, which is what an attack would return if it were stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.matching import (
    LBFGS,
    Adam,
    BoundedLBFGS,
    Matching,
    Minimiser,
    NoPrior,
    Pixels,
    TotalVariation,
    Uniform,
)
from leakgauge.attacks.matching.problem import Best, Minimum, ObjectiveValues, Problem
from leakgauge.attacks.recipes import Auto, dlg, inverting_gradients
from leakgauge.attacks.recipes.auto import falling_variation
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, Samples, Source, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet, lenet, mlp, resnet20
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Task
from leakgauge.tensors import Tensors

TARGETS = (15, 20, 25, 26, 30)

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "lenet": lenet,
    "mlp": mlp,
    "convnet-16": lambda: convnet(width=16),
    "resnet20-16": lambda: resnet20(width=16),
}


def _from_uniform(minimiser: Minimiser, weight: float) -> Matching:
    prior = TotalVariation(weight, smoothing=1e-6) if weight else NoPrior()
    return Matching(prior=prior, canvas=Pixels(first=Uniform()), minimiser=minimiser)


def _falling(minimiser: Minimiser, n: int) -> Matching:
    return Matching(prior=falling_variation(n), canvas=Pixels(first=Uniform()), minimiser=minimiser)


ATTACKS: dict[str, Callable[[Task, int], Matching]] = {
    "auto": lambda task, n: Auto().choice(task, torch.Generator().manual_seed(0), evaluations=n),
    "bounded-lbfgs": lambda _, n: _from_uniform(BoundedLBFGS(steps=n), 1e-3),
    "bounded-lbfgs-no-tv": lambda _, n: _from_uniform(BoundedLBFGS(steps=n), 0.0),
    "bounded-lbfgs-falling-tv": lambda _, n: _falling(BoundedLBFGS(steps=n), n),
    "adam": lambda _, n: _from_uniform(Adam(steps=n, lr=0.1, signed=False), 1e-3),
    "signed-adam": lambda _, n: _from_uniform(Adam(steps=n, lr=0.03), 1e-3),
    "lbfgs": lambda _, n: _from_uniform(LBFGS(steps=n), 1e-3),
    "inverting-gradients": lambda _, n: inverting_gradients(steps=n),
    "inverting-gradients-tv-1e-4": lambda _, n: inverting_gradients(steps=n, tv=1e-4),
    "inverting-gradients-no-tv": lambda _, n: inverting_gradients(steps=n, tv=0.0),
    "dlg": lambda _, n: dlg(steps=n, restarts=1),
}
"""Name → the attack on a task, for a number of evaluations. `dlg` is its recipe but for one start. Inverting Gradients
has total variations of its own for each network: 1e-2 on LeNet, 1e-4 on a ConvNet (Table 2), none on an untrained
ResNet-20 (Table 1)."""


@dataclass(eq=False)
class Watched:
    """A minimiser, and (gradient evaluations, one-core seconds, PSNR) of its best point after each evaluation,
    or, where `noted` is given, that point for it to look at."""

    minimiser: Minimiser
    judge: Callable[[Tensor], float]
    began: float
    seen: list[tuple[int, float, float]] = field(default_factory=list)
    noted: Callable[[Tensor], None] | None = None

    batched: ClassVar[bool] = False

    @property
    def dtype(self) -> torch.dtype | None:  # type: ignore[override]
        return self.minimiser.dtype

    def minimise(self, problem: Problem) -> Minimum:
        """As the minimiser does."""
        evaluate = problem.evaluate
        best = Best(1, next(iter(problem.start.values())))

        def watch(point: Tensors, at: ObjectiveValues) -> None:
            best.offer(point, at)
            if self.noted is not None:
                self.noted(best.variables["pixels"].detach()[0])
                return
            score = self.judge(best.variables["pixels"].detach()[0])
            self.seen.append((problem.meter.spent, time.process_time() - self.began, score))

        def evaluated(point: Tensors) -> ObjectiveValues:
            at = evaluate(point)
            watch(point, at)
            return at

        problem.evaluate = evaluated  # type: ignore[method-assign]
        return self.minimiser.minimise(problem)


def run(network: str, name: str, source: Source, image: int, seed: int, evaluations: int) -> dict[str, Any]:
    """One attack on one image."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        task = Task.of(NETWORKS[network](), spec(source))
    batch = source.read([image])
    update = client_update(task, FedSGD(), batch, Draws(seed))
    seen = Observation(task, update, Knowledge(labels=batch.labels, example_count=1, local_training=FedSGD()))

    def psnr(inputs: Tensor) -> float:
        return float(PSNR()(inputs.float(), batch.inputs))

    generator = torch.Generator().manual_seed(1000 * seed + image)
    began = time.process_time()
    row: dict[str, Any] = {"network": network, "attack": name, "image": image, "seed": seed, "budget": evaluations}
    if name == "auto":
        read = LinearRead().reconstruct(seen, generator)
        if read.status is Status.EXACT and read.inputs is not None:
            reached = {str(t): [0, read.cost.seconds] for t in TARGETS}
            return row | {
                "reached": reached,
                "final": psnr(read.inputs),
                "status": read.status.value,
                "seconds": read.cost.seconds,
                "evaluations": 0,
            }
    attack = ATTACKS[name](task, evaluations)
    watched = Watched(attack.minimiser, lambda z: psnr(task.data.denormalise(z)), began)
    found = replace(attack, minimiser=watched).reconstruct(
        seen, generator, budget=Budget(gradient_evaluations=evaluations)
    )
    first = {t: next(([n, round(s, 3)] for n, s, score in watched.seen if score >= t), None) for t in TARGETS}
    return row | {
        "reached": {str(t): at for t, at in first.items()},
        "final": 0.0 if found.inputs is None else psnr(found.inputs),
        "status": found.status.value,
        "seconds": round(time.process_time() - began, 3),
        "evaluations": found.cost.gradient_evaluations,
    }


KEY = ("network", "attack", "image", "seed", "budget")


def rows(path: Path) -> list[dict[str, Any]]:
    """Those written so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def median(values: list[float | None]) -> float | None:
    """`None` counts as never: the median of a set of which half never got there is never."""
    middle = statistics.median_high([math.inf if v is None else v for v in values])
    return None if middle == math.inf else middle


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: medians of seconds / evaluations to each target, and of the final PSNR."""
    targets = " | ".join(f"{t} dB" for t in TARGETS)
    yield f"| network | attack | evaluations | images × seeds | {targets} | final dB | s |"
    yield "|---" * (6 + len(TARGETS)) + "|"
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in found:
        groups.setdefault((row["network"], row["attack"], row["budget"]), []).append(row)
    for (network, name, budget), runs in sorted(groups.items()):
        cells = []
        for target in TARGETS:
            at = [row["reached"][str(target)] for row in runs]
            seconds, evaluations = median([a and a[1] for a in at]), median([a and a[0] for a in at])
            cells.append("–" if seconds is None else f"{seconds:.3g} s / {evaluations:.0f}")
        final, spent = (statistics.median(row[k] for row in runs) for k in ("final", "seconds"))
        images, seeds = (len({row[k] for row in runs}) for k in ("image", "seed"))
        size = f"{images} × {seeds}" if images * seeds == len(runs) else f"{len(runs)} runs"
        yield f"| {network} | {name} | {budget} | {size} | {' | '.join(cells)} | {final:.1f} | {spent:.3g} |"


def main() -> None:
    """Runs what is not yet there, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="Parquet file of images; default: the embedded photos")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--images", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=600)
    parser.add_argument("--table", action="store_true", help="print the table of what is there, run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table(rows(arguments.out))))
        return
    Compute().apply()
    source = Samples(size=32) if arguments.data is None else Parquet(path=str(arguments.data))
    done = {tuple(row[k] for k in KEY) for row in rows(arguments.out)}
    cases = product(arguments.networks, arguments.attacks, range(arguments.images), range(arguments.seeds))
    for network, name, image, seed in cases:
        if (network, name, image, seed, arguments.evaluations) in done:
            continue
        row = run(network, name, source, image, seed, arguments.evaluations)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print({k: row[k] for k in ("network", "attack", "image", "seed", "final", "seconds")}, flush=True)


if __name__ == "__main__":
    main()
