"""The short way in: `leakgauge.audit`, `attack`, `inspect` and `frontier`, for objects of your own."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.recipes import Auto
from leakgauge.attacks.recipes.any_loss import with_shares
from leakgauge.clients import FedSGD
from leakgauge.compute import Budget, Compute
from leakgauge.data import InMemory, Parts, Source
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.frontiers.session import Frontier, run_frontier
from leakgauge.inspection.rule import Limits, State, received
from leakgauge.inspection.verdict import Inspection
from leakgauge.inspection.verdict import inspect as inspected
from leakgauge.observation import Attack, Knowledge, Observation, OnStep, Reconstruction
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import OnTrial, Running
from leakgauge.study.session import Audit, audited
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import aligned
from leakgauge.update import Update, UpdateKind
from leakgauge.view.undone import plainer
from leakgauge.workers import LocalPool

Data = Source | str | tuple[Tensor, Tensor] | Mapping[str, Tensor]
"""A source, its name in a plan, raw inputs in [0, 1] and labels from 0 (other ranges: `leakgauge.data.InMemory`), or
the parts of `Task.of_step` by name."""


def audit(
    model: nn.Module | Task | str | Mapping[str, Any] | Sequence[Any],
    data: Data,
    *,
    batch: int = 1,
    batches: int = 8,
    folder: Path | str | None = None,
    workers: int = 1,
    compute: Compute = Compute(),
    counts_only: bool = False,
    anew: bool = False,
    on_trial: OnTrial | None = None,
    **plan: Any,
) -> Audit:
    """Audits what updates of your model give away of your examples: the plan of ``leakgauge audit``, called.

    Keys of a plan are keywords here, and objects may stand wherever a plan has names: a module, tensors, protocols,
    defences (a list of them composes), attacks, a server. Raises `InputError`: an argument cannot be used (it is
    named), or the folder holds another audit.

    Args:
        model: as it is broadcast, or a training step of your own (`Task.of_step`); is not changed. A list for several.
        data: the clients' examples and others, from which line-ups and the attacker's public data are taken.
        batch, batches: how many examples a client has, and how many clients there are.
        folder: where results go; called again with the same plan it goes on there, and with another one it raises. A
            plan with a module, classes or functions of your own, whose code is not compared, goes on only if both calls
            give it the same ``identity``. `None`: a temporary folder.
        workers: trials at a time, each in a process of one thread.
        compute: threads, device and precision. Set for the whole process.
        counts_only: write no image, and hashes for file names.
        anew: set results of another plan in the folder aside.
        on_trial: told (finished, all, id of the last).
        plan: other keys of a plan: ``clients``, ``defenses``, ``attacks``, ``server``, ``knows``, ``budget``,
            ``seeds``, ``mode``, ``loss``, ``gate``, ``only``, ``gallery``, ``lpips``, ``update``, ``name``,
            ``identity``.
    """
    compute.apply()
    dealt = {"source": _source(data), "batch": batch, "batches": batches}
    made = resolve_plan({"model": model, "data": dealt} | {key: _word(value) for key, value in plan.items()})
    where = Path(mkdtemp(prefix="leakgauge-") if folder is None else folder)
    how = Running(compute=compute, counts_only=counts_only, anew=anew, executor=LocalPool(workers))
    audit = audited(made, where, how if on_trial is None else replace(how, on_trial=on_trial))
    audit.own(folder)
    return audit


def frontier(
    model: nn.Module | str | Mapping[str, Any],
    data: Data,
    defenses: Mapping[str, Sequence[Any]],
    *,
    train: Data | None = None,
    test: Data | None = None,
    images: int = 8,
    batch: int = 1,
    utility: Mapping[str, Any] | None = None,
    folder: Path | str | None = None,
    workers: int = 1,
    compute: Compute = Compute(),
    **plan: Any,
) -> Frontier:
    """What each defence leaves to an attacker, beside what it costs: the plan of ``leakgauge frontier``, called. Raises
    `InputError` as `audit` does.

    Args:
        model: as it is broadcast and trained; is not changed.
        data: the examples that are attacked, and others.
        defenses: family → its strengths from weak to strong, each a defence, a list of them that composes, or a
            mapping of ``defense``, ``client``, ``batch``, ``cohort`` and ``train``. The undefended row is always there.
        train, test: to train with in simulation, and to measure accuracy on; without both it is not measured.
        images: how many examples are attacked in each row.
        batch: how many of them a client has.
        utility: other keys of the training: ``clients``, ``rounds``, …
        folder, workers, compute: as in `audit`.
        plan: other keys of a frontier plan: ``client``, ``attack``, ``knows``, ``budget``, ``seeds``, ``delta``, …
    """
    compute.apply()
    trained = {key: _source(given) for key, given in (("train", train), ("test", test)) if given is not None}
    words = {
        "model": model,
        "data": {"source": _source(data), "images": images, "batch": batch},
        "defenses": {family: list(strengths) for family, strengths in defenses.items()},
        "utility": {**(utility or {}), **trained},
    }
    made = resolve_frontier(words | {key: _word(value) for key, value in plan.items()})
    where = Path(mkdtemp(prefix="leakgauge-") if folder is None else folder)
    finished = Frontier(run_frontier(made, where, workers=workers, compute=compute), where)
    finished.own(folder)
    return finished


def _source(data: Data) -> Source | Parts | str:
    if isinstance(data, Mapping):
        return Parts(values=data)
    return InMemory(inputs=data[0], labels=data[1]) if isinstance(data, tuple) else data


def _word(value: Any) -> Any:
    """What a plan's file would have for a value of ours."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Budget):
        return {name: spent for name, spent in vars(value).items() if spent is not None}
    return [_word(one) for one in value] if isinstance(value, tuple | list) else value


def attack(
    task: Task,
    update: Update,
    *,
    using: Attack | None = None,
    knows: Knowledge | None = None,
    seed: int = 0,
    budget: Budget = Budget(),
    compute: Compute = Compute(),
    on_step: OnStep | None = None,
) -> Reconstruction:
    """What an attacker gets back out of one update. Raises `InputError`: update and task do not fit together.

    Args:
        task: model, loss and data format that made the update.
        using: the attack; by default `Auto`, which tries all that applies.
        knows: what the attacker is given. By default what the update's header says: the example count, and for a plain
            gradient that it is one. A delta takes ``Knowledge(local_training=FedAvg(…))``.
        compute: threads, device and precision. Set for the whole process.
        on_step: called as the attack goes on; it stops when that returns True.
    """
    compute.apply()
    update = Update(aligned(task.parameters, update.tensors), update.header, update.buffers)
    plain = FedSGD() if update.header.kind is UpdateKind.GRADIENT else None
    given = knows or Knowledge(local_training=plain)
    generator, (observation, left) = torch.Generator().manual_seed(seed), plainer(Observation(task, update, given))
    found = (using or Auto()).reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
    return with_shares(found.with_view(observation, *left), observation, generator).in_parts(task)


def inspect(
    state: State,
    *,
    model: nn.Module | None = None,
    data: DataSpec | None = None,
    reference: State | None = None,
    previous: State | None = None,
    hashes: tuple[str, ...] = (),
    name: str = "received",
) -> Inspection:
    """The client's check of a received model before it trains on it. Raises `InputError`: a file cannot be read, or
    parts do not fit each other.

    Args:
        state: a state dict, or a file of one (no code in it is run).
        model: its architecture; is not changed.
        data: format of the client's examples. Needs `model`.
        reference: a model of the same architecture that the client trusts.
        name: what to call the model where `state` is no file.
    """
    found = received(state, model=model, data=data, reference=reference, previous=previous)
    shown = name if isinstance(state, Mapping) else Path(state).name
    return inspected(found, Limits.packaged(), name=shown, hashes=hashes)
