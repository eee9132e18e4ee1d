"""The short way in: `leakgauge.attack` and `leakgauge.inspect`, for objects of your own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD
from leakgauge.compute import Budget, Compute
from leakgauge.inspection import Limits, Received
from leakgauge.inspection.received import agrees
from leakgauge.inspection.result import Inspection
from leakgauge.inspection.verdict import inspect as inspected
from leakgauge.models.weights import fingerprint, read_model
from leakgauge.observation import Attack, Knowledge, Observation, OnStep, Reconstruction
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import Update, UpdateKind

State = Mapping[str, Tensor]


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
    """What an attacker gets back out of one update.

    Args:
        task: model, loss and data format that made the update.
        update: as the client sent it.
        using: the attack; by default `Auto`, which tries all that applies.
        knows: what the attacker is given. By default what the update's header says: the example count, and for a plain
            gradient that it is one. A delta takes ``Knowledge(local_training=FedAvg(…))``.
        seed: of the attack's random numbers; the same seed gives the same result.
        budget: limit of its effort.
        compute: threads, device and precision. Set for the whole process.
        on_step: called as the attack goes on; it stops when that returns True.

    Raises:
        InputError: update and task do not fit together.
    """
    compute.apply()
    plain = FedSGD() if update.header.kind is UpdateKind.GRADIENT else None
    given = Knowledge(local_training=plain) if knows is None else knows
    generator = torch.Generator().manual_seed(seed)
    observation = Observation(task, update, given)
    return (using or Auto()).reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)


def inspect(
    state: State | Path | str,
    *,
    model: nn.Module | None = None,
    data: tuple[DataSpec, Batch] | None = None,
    reference: State | Path | str | None = None,
    previous: State | Path | str | None = None,
    hashes: tuple[str, ...] = (),
    name: str = "received",
) -> Inspection:
    """The client's check of a received model before it trains on it.

    Args:
        state: a state dict, or a file of one (no code in it is run).
        model: its architecture; is not changed.
        data: format and some of the client's own examples, which stay here. Needs `model`.
        reference: a model of the same architecture that the client trusts.
        previous: the model of the round before.
        hashes: fingerprints that other clients of the round saw.
        name: what to call the model where `state` is no file.

    Raises:
        InputError: a file cannot be read, or parts do not fit each other.
    """
    tensors = _state(state, "state")
    trusted = None if reference is None else _state(reference, "reference", like=tensors)
    before = None if previous is None else _state(previous, "previous", like=tensors)
    module = None if model is None else copy.deepcopy(model)
    if module is not None:
        agrees(module.state_dict(), tensors, "model")
        module.load_state_dict(dict(tensors))
        module.eval()
    task, batch = None, None
    if data is not None and module is not None:
        task, batch = Task.of(module.float(), data[0], name=name), data[1]
    received = Received(tensors, module, task, batch, trusted, before)
    shown = name if isinstance(state, Mapping) else Path(state).name
    return inspected(received, Limits.packaged(), name=shown, fingerprint=fingerprint(tensors), hashes=hashes)


def _state(given: State | Path | str, field: str, like: State | None = None) -> State:
    state = given if isinstance(given, Mapping) else read_model(Path(given), field)
    if like is not None:
        agrees(like, state, field)
    return state
