"""The one path from a batch to an update, for clients and for attackers who simulate them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leakgauge.clients.protocol import Protocol, example_rule, mean_gradient
from leakgauge.clients.secure_aggregation import SecureAggregation
from leakgauge.defenses.defense import Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader


def raw_update(task: Task, protocol: Protocol, batch: Batch, draws: Draws, defense: Defense) -> tuple[Tensors, Tensors]:
    """Everything up to the update stage: local training with the defence's example stage inside.

    `task` is already the defended one (`Defense.on_task`).

    Raises:
        InputError: BatchNorm in train mode has one value a channel.
    """
    rule = example_rule(defense.on_example_gradients) if defense.acts_on_examples else mean_gradient
    try:
        return protocol.local_training(task, batch, draws, rule)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):  # torch's words
            raise
        words = "leaves BatchNorm in train mode one value a channel, which has no spread"
        raise InputError("batch", words, "give more examples a step, larger ones, or eval mode") from error


Stages = Callable[[Protocol, Batch, Draws], tuple[Tensors, Tensors]]
"""``(a client's own protocol, its examples, its draws) → (update, buffers)``: one client from batch to wire."""


def stages_of(task: Task, defense: Defense) -> Stages:
    """One client under a defence, of which `task` has the task stage already."""

    def stages(protocol: Protocol, batch: Batch, draws: Draws) -> tuple[Tensors, Tensors]:
        batch = defense.on_batch(batch, draws.generator("batch"))
        bound = defense.for_batch(task, batch)
        raw, buffers = raw_update(task, protocol, batch, draws, bound)
        return bound.on_update(map_tensors(lambda t: t.detach(), raw), draws.generator("update")), buffers

    return stages


def sent_update(protocol: Protocol, batch: Batch, draws: Draws, stages: Stages) -> tuple[Tensors, Tensors]:
    """What the server sees: `stages` of the only client, or their mean over a cohort, each client with its own draws.

    Clients and the attackers who simulate them both come through here, so that a defence of the batch or the
    update acts on each client of a cohort, never on the mean: noise and top-k of the mean would look stronger.
    """
    if isinstance(protocol, SecureAggregation):
        return protocol.mean_of(batch, draws, lambda own, its: sent_update(protocol.client, own, its, stages))
    return stages(protocol, batch, draws)


def trained_on(protocol: Protocol, batch: Batch, draws: Draws, defense: Defense) -> Batch:
    """The examples as the clients trained on them: `batch`, but for what a defence of the batch changed."""
    protocol = protocol.alone
    if not isinstance(protocol, SecureAggregation):
        return defense.on_batch(batch, draws.generator("batch"))
    parts = [trained_on(protocol.client, own, its, defense) for own, its in protocol.each(batch, draws)]
    return Batch.join(parts)


def refuse_combination(protocol: Protocol, defense: Defense) -> None:
    """Raises `InputError` where a cohort's simulation would need what only each client's own update shows.

    A mask that was fitted to a client's data (Soteria) is read from its update's zeros; a mean has none of them.
    """
    if protocol.aggregates and defense.fits_to_data:
        raise InputError(
            "defenses",
            f"{defense} fits a mask to each client's data, which cannot be told from a mean over a cohort",
            "audit the defence with fedsgd or fedavg, or secure aggregation without it",
        )


def _check(batch: Batch, task: Task) -> None:
    if task.named is None and not batch.labels.is_floating_point() and len(batch.labels):
        low, high = int(batch.labels.min()), int(batch.labels.max())
        inside = low >= 0 and high < task.outputs
        require(inside, "batch.labels", f"go from {low} to {high}", f"give classes from 0 to {task.outputs - 1}")
    finite = bool(batch.inputs.isfinite().all())
    require(finite, "batch.inputs", "hold NaN or infinity", "clean the data: no client can train on them")


def client_update(
    task: Task,
    protocol: Protocol,
    batch: Batch | Any,
    draws: Draws,
    *,
    defense: Defense | None = None,
    send_example_count: bool = True,
    send_buffers: bool = False,
    task_stage: bool = True,
) -> Update:
    """What the server sees for `batch`: all stages of the defence, in their order, by each client for itself.

    Args:
        batch: a `Batch`, or the named parts of `Task.of_step` as a dict, tuple or dataclass of tensors.
        task_stage: whether the defence still has to change the task; not from the second round on, when the parameters
            that it added have been trained.

    Returns:
        An update with detached tensors. Its header says what kind it is, and the example count only
        if the protocol sends it.

    Raises:
        InputError: a batch with labels that the model has no output for, with NaN or infinity, or with parts that the
            task does not have so.
    """
    batch = task.layout.batch(batch)
    _check(batch, task)
    defense = defense or NoDefense()
    refuse_combination(protocol, defense)
    tensors, buffers = sent_update(
        protocol, batch, draws, stages_of(defense.on_task(task) if task_stage else task, defense)
    )
    header = UpdateHeader(protocol.kind, len(batch) if send_example_count else None, {"protocol": repr(protocol)})
    return Update(tensors, header, {k: v.detach() for k, v in buffers.items()} if send_buffers else None)
