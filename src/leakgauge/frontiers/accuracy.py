"""What each row costs in accuracy: the trainings of a plan, in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leakgauge.compute import Compute
from leakgauge.data import Source
from leakgauge.data.source import spec
from leakgauge.draws import Draws
from leakgauge.files import private_folder
from leakgauge.frontiers.folder import Folder, keep, kept
from leakgauge.frontiers.plan import FrontierPlan
from leakgauge.statistics.intervals import proportion_interval
from leakgauge.task import Task
from leakgauge.training.federated import Training
from leakgauge.training.partition import Examples, Hands, dirichlet_partition
from leakgauge.workers import run_all

OnTraining = Callable[[int, int, str], None]
"""(finished, all, name of the last)."""


@dataclass(frozen=True)
class Stage:
    """What all trainings of a plan share."""

    plan: FrontierPlan
    task: Task
    train: Examples
    hands: Hands
    test: Examples


_stage: Stage | None = None


def partition_of(plan: FrontierPlan) -> Hands:
    """Who holds what in the simulation."""
    u = plan.config.utility
    assert plan.train is not None
    labels = plan.train.labels[: u.examples] if u.examples else plan.train.labels
    return dirichlet_partition(labels, u.clients, u.alpha, Draws(u.seed).generator("partition"))


def stage_of(plan: FrontierPlan) -> Stage:
    """Reads the data and builds the model."""
    u = plan.config.utility

    def read(source: Source, most: int | None) -> Examples:
        return Examples.read(source, spec(source), most)

    assert plan.train is not None
    assert plan.test is not None
    task = plan.model_for(plan.train)
    train, test = read(plan.train, u.examples), read(plan.test, u.test_examples)
    return Stage(plan, task, train, partition_of(plan), test)


def run_training(stage: Stage, name: str, result: Path) -> str:
    """One training, from its checkpoint if there is one; writes `result` and removes the checkpoint."""
    row = stage.plan.trainings()[name]
    checkpoint = result.with_suffix(".checkpoint")
    simulation = stage.plan.training(row.client.value, row.defense.value)
    done = simulation.run(stage.task, stage.train, stage.hands, stage.test, checkpoint=checkpoint)
    keep(result, record_of(name, done, len(stage.test)))
    checkpoint.unlink(missing_ok=True)
    return name


def record_of(name: str, done: Training, tested: int) -> dict[str, Any]:
    """A training as report.json has it. The interval is that of a share of `tested` examples, nothing else."""
    score = done.accuracy
    ends = None if score is None else proportion_interval(round(score * tested), tested)
    return {
        "name": name,
        "value": score,
        "low": None if ends is None or ends.low is None else round(ends.low, 4),
        "high": None if ends is None or ends.high is None else round(ends.high, 4),
        "tested": tested,
        "diverged": done.diverged,
        "curve": [list(point) for point in done.curve],
        "seconds": round(sum(r.seconds for r in done.rounds), 1),
    }


def _begin(ground: tuple[dict[str, Any], Compute]) -> None:
    global _stage
    raw, compute = ground
    compute.apply()
    _stage = stage_of(FrontierPlan(raw))


def _run(job: tuple[str, Path]) -> str:
    assert _stage is not None
    return run_training(_stage, *job)


def run_trainings(
    plan: FrontierPlan,
    folder: Folder,
    *,
    workers: int,
    compute: Compute,
    on_training: OnTraining | None = None,
) -> None:
    """Runs the trainings that are not finished, each from its checkpoint.

    Raises:
        InputError: an input turned out bad or a worker died; what is finished is kept.
    """
    files = {name: folder.training(name) for name in plan.trainings()}
    left = [name for name, file in files.items() if kept(file) is None]
    done = set(files) - set(left)
    if on_training is not None and files:
        on_training(len(done), len(files), "")
    if not left:
        return
    private_folder(folder.path / "utility")

    def tell(name: str) -> None:
        done.add(name)
        if on_training is not None:
            on_training(len(done), len(files), name)

    if workers == 1:
        stage = stage_of(plan)
        for name in left:
            tell(run_training(stage, name, files[name]))
        return
    jobs, ground = [(name, files[name]) for name in left], (plan.raw, compute)
    run_all(_run, jobs, tell, workers=workers, begin=_begin, ground=ground, kept="trainings")


def participations(plan: FrontierPlan) -> tuple[int, ...]:
    """How often each client of the simulation trains: the draw of clients does not depend on the training."""
    u = plan.config.utility
    simulation = plan.training(plan.client.value, plan.undefended.defense.value)
    counts = torch.zeros(u.clients, dtype=torch.int64)
    for number in range(u.rounds):
        counts[list(simulation.asked(u.clients, number))] += 1
    return tuple(counts.tolist())
