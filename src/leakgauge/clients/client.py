"""The one path from a batch to an update, for clients and for attackers who simulate them."""

from __future__ import annotations

from leakgauge.clients.gradient import example_rule, mean_gradient
from leakgauge.clients.protocol import Protocol
from leakgauge.clients.secure_aggregation import SecureAggregation
from leakgauge.defenses.defense import Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader


def raw_update(task: Task, protocol: Protocol, batch: Batch, draws: Draws, defense: Defense) -> tuple[Tensors, Tensors]:
    """Everything up to the update stage: local training with the defence's example stage inside.

    `task` is already the defended one (`Defense.on_task`).
    """
    rule = example_rule(defense.on_example_gradients) if defense.acts_on_examples else mean_gradient
    return protocol.local_training(task, batch, draws, rule)


def refuse_combination(protocol: Protocol, defense: Defense) -> None:
    """Raises `InputError` where each client of a cohort would have to change its own update.

    Applied to the mean instead, noise and top-k would look stronger than they are.
    """
    if isinstance(protocol, SecureAggregation) and defense.acts_on_update:
        raise InputError(
            "defenses",
            f"{defense} changes each client's update, which secure aggregation does not simulate yet",
            "audit the defence with fedsgd or fedavg, or secure aggregation with none",
        )


def client_update(
    task: Task,
    protocol: Protocol,
    batch: Batch,
    draws: Draws,
    *,
    defense: Defense | None = None,
    send_example_count: bool = True,
    send_buffers: bool = False,
) -> Update:
    """What the client sends for `batch`: all stages of the defence, in their order.

    Returns:
        An update with detached tensors. Its header says what kind it is, and the example count only
        if the protocol sends it.
    """
    defense = defense or NoDefense()
    refuse_combination(protocol, defense)
    task = defense.on_task(task)
    batch = defense.on_batch(batch, draws.generator("batch"))
    defense = defense.for_batch(task, batch)
    tensors, buffers = raw_update(task, protocol, batch, draws, defense)
    tensors = defense.on_update(map_tensors(lambda t: t.detach(), tensors), draws.generator("update"))
    header = UpdateHeader(protocol.kind, len(batch) if send_example_count else None, {"protocol": repr(protocol)})
    return Update(tensors, header, {k: v.detach() for k, v in buffers.items()} if send_buffers else None)
