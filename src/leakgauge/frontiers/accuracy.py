"""What each row costs in accuracy: the trainings of a plan, in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.compute import Compute
from leakgauge.data import Source
from leakgauge.data.source import spec
from leakgauge.draws import Draws
from leakgauge.files import private_folder
from leakgauge.frontiers.folder import FrontierFolder, keep, kept
from leakgauge.frontiers.plan import FrontierPlan, Utility
from leakgauge.frontiers.results import Accuracy
from leakgauge.intervals import proportion_interval
from leakgauge.task import Task
from leakgauge.training.federated import Training
from leakgauge.training.partition import Hands, StoredExamples, dirichlet_partition
from leakgauge.workers import run_all

OnTraining = Callable[[int, int, str], None]
"""(finished, all, name of the last)."""


@dataclass(frozen=True)
class SharedTraining:
    """What all trainings of a plan share."""

    plan: FrontierPlan
    utility: Utility
    task: Task
    train: StoredExamples
    hands: Hands
    test: StoredExamples


_stage: SharedTraining | None = None


def partition_of(u: Utility) -> Hands:
    """Who holds what in the simulation."""
    labels = u.train.labels[: u.examples] if u.examples else u.train.labels
    return dirichlet_partition(labels, u.clients, u.alpha, Draws(u.seed).generator("partition"))


def stage_of(plan: FrontierPlan) -> SharedTraining:
    """Reads the data and builds the model."""
    u = plan.utility
    assert u is not None

    def read(source: Source, most: int | None) -> StoredExamples:
        return StoredExamples.read(source, spec(source), most)

    train, test = read(u.train, u.examples), read(u.test, u.test_examples)
    return SharedTraining(plan, u, plan.trained_task(u), train, partition_of(u), test)


def run_training(stage: SharedTraining, name: str, result: Path) -> str:
    """One training, from its checkpoint if there is one; writes `result` and removes the checkpoint."""
    row = stage.plan.trainings()[name]
    checkpoint = result.with_suffix(".checkpoint")
    simulation = stage.plan.training(stage.utility, row.client.value, row.defense.value)
    done = simulation.run(stage.task, stage.train, stage.hands, stage.test, checkpoint=checkpoint)
    keep(result, accuracy_of(name, done, stage.test.labels))
    checkpoint.unlink(missing_ok=True)
    return name


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


def _begin(ground: tuple[bytes, Compute]) -> None:
    global _stage
    plan, compute = ground
    compute.apply()
    _stage = stage_of(cloudpickle.loads(plan))


def _run(job: tuple[str, Path]) -> str:
    assert _stage is not None
    return run_training(_stage, *job)


def run_trainings(
    plan: FrontierPlan,
    folder: FrontierFolder,
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
    left = [name for name, file in files.items() if kept(file, Accuracy) is None]
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
    jobs, ground = [(name, files[name]) for name in left], (cloudpickle.dumps(plan), compute)
    run_all(_run, jobs, tell, workers=workers, begin=_begin, ground=ground, kept="trainings")


def participations(plan: FrontierPlan, u: Utility) -> tuple[int, ...]:
    """How often each client of the simulation trains: the draw of clients does not depend on the training."""
    simulation = plan.training(u, plan.client.value, plan.undefended.defense.value)
    counts = torch.zeros(u.clients, dtype=torch.int64)
    for number in range(u.rounds):
        counts[list(simulation.asked(u.clients, number))] += 1
    return tuple(counts.tolist())
