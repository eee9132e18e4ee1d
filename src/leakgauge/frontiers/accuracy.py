"""What each row costs in accuracy: the trainings of a plan, in worker processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.compute import Compute
from leakgauge.data.source import spec
from leakgauge.draws import Draws
from leakgauge.frontiers.plan import FrontierPlan
from leakgauge.frontiers.results import Accuracy
from leakgauge.intervals import proportion_interval
from leakgauge.task import Task
from leakgauge.training.federated import Training
from leakgauge.training.partition import Hands, StoredExamples, dirichlet_partition
from leakgauge.workers import run_all


@dataclass(frozen=True)
class SharedTraining:
    """What all trainings of a plan share, and where their checkpoints lie."""

    plan: FrontierPlan
    task: Task
    train: StoredExamples
    hands: Hands
    test: StoredExamples
    folder: Path


_stage: SharedTraining | None = None


def partition_of(plan: FrontierPlan) -> Hands:
    """Who holds what in the simulation."""
    assert plan.utility is not None
    u, labels = plan.config.utility, plan.utility.train.labels
    return dirichlet_partition(
        labels[: u.examples] if u.examples else labels, u.clients, u.alpha, Draws(u.seed).generator("partition")
    )


def stage_of(plan: FrontierPlan, folder: Path) -> SharedTraining:
    """Reads the data and builds the model."""
    u, data = plan.config.utility, plan.utility
    assert data is not None
    train, test = (
        StoredExamples.read(source, spec(source), most)
        for source, most in ((data.train, u.examples), (data.test, u.test_examples))
    )
    return SharedTraining(plan, plan.trained_task(data), train, partition_of(plan), test, folder)


def run_training(stage: SharedTraining, name: str) -> tuple[str, Accuracy]:
    """One training, from its checkpoint if there is one."""
    row = stage.plan.trainings()[name]
    checkpoint, simulation = _checkpoint(stage.folder, name), stage.plan.training(row)
    done = simulation.run(stage.task, stage.train, stage.hands, stage.test, checkpoint=checkpoint)
    return name, accuracy_of(name, done, stage.test.labels)


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.checkpoint"


def accuracy_of(name: str, done: Training, labels: Int[Tensor, " n"]) -> Accuracy:
    """What a training reached.

    Args:
        labels: of the test examples.
    """
    score, tested = done.accuracy, len(labels)
    ends = None if score is None else proportion_interval(round(score * tested), tested)
    return Accuracy(
        value=score,
        reason=None if done.diverged is None else f"training diverged in round {done.diverged}",
        name=name,
        low=None if ends is None or ends.low is None else round(ends.low, 4),
        high=None if ends is None or ends.high is None else round(ends.high, 4),
        tested=tested,
        constant=round(float(labels.bincount().max()) / tested, 4),
        diverged=done.diverged,
        curve=done.curve,
        seconds=round(sum(r.seconds for r in done.rounds), 1),
    )


def _begin(ground: tuple[bytes, Compute, Path]) -> None:
    global _stage
    plan, compute, folder = ground
    compute.apply()
    _stage = stage_of(cloudpickle.loads(plan), folder)


def _run(name: str) -> tuple[str, Accuracy]:
    assert _stage is not None
    return run_training(_stage, name)


def run_trainings(
    plan: FrontierPlan,
    names: Iterable[str],
    folder: Path,
    on_training: Callable[[str, Accuracy], None],
    *,
    workers: int,
    compute: Compute,
) -> None:
    """Runs trainings of these names, each from its checkpoint in `folder`; `on_training` is given the result.

    Raises:
        InputError: an input turned out bad or a worker died; what is finished is kept.
    """

    def keep(found: tuple[str, Accuracy]) -> None:
        on_training(*found)
        _checkpoint(folder, found[0]).unlink(missing_ok=True)

    left = list(names)
    if not left:
        return
    if workers == 1:
        stage = stage_of(plan, folder)
        for name in left:
            keep(run_training(stage, name))
        return
    ground = (cloudpickle.dumps(plan), compute, folder)
    run_all(_run, left, keep, workers=workers, begin=_begin, ground=ground, kept="trainings")


def participations(plan: FrontierPlan) -> tuple[int, ...]:
    """How often each client of the simulation trains: the draw of clients does not depend on the training."""
    u, simulation = plan.config.utility, plan.training(plan.undefended)
    counts = torch.zeros(u.clients, dtype=torch.int64)
    for number in range(u.rounds):
        counts[list(simulation.asked(u.clients, number))] += 1
    return tuple(counts.tolist())
