"""How many examples of a batch peeling would read, told from the client's own activations, without an attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.exact.peeling import readable_layer
from leakgauge.attacks.exact.residual import FACTOR
from leakgauge.errors import require
from leakgauge.task import Batch, Task
from leakgauge.wire import Wire


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What `leakgauge.attacks.exact.Peeling` would do to one batch.

    Attributes:
        examples: in the batch.
        units: of the layer that reads the input.
        alone: examples that drive some unit alone, and are read at once.
        read: examples that are read in the end.
        silent: examples whose gradient is below the rounding of the update: nothing can read them.
        rounds: of reading and subtracting.
    """

    examples: int
    units: int
    alone: int
    read: int
    silent: int
    rounds: int

    @property
    def rate(self) -> float:
        """Share of the batch that is read exactly."""
        return self.read / self.examples


def replay(task: Task, batch: Batch, generator: torch.Generator, *, wire: torch.dtype | None = None) -> Replay | str:
    """Replays the peeling of one FedSGD update on the activation mask: who drives which unit of the first layer.

    Row i of the layer's gradient is a sum over the examples whose s·δ_ki is not zero. An example is read when a row is
    left to it alone and its share there exceeds the row's rounding; its shares are then taken out of all rows.
    Costs one gradient a unit and example, and no knowledge but the client's own.

    Args:
        batch: the client's own, raw.
        wire: format in which the update is sent; that of the model unless given.

    Returns:
        What peeling reads, or the reason why it does not apply.

    Raises:
        InputError: no examples.
    """
    require(len(batch) > 0, "batch", "is empty", "give at least one example")
    like = batch.inputs.new_zeros((), dtype=torch.float64)
    tail = readable_layer(task, generator, like)
    if isinstance(tail, str):
        return tail
    labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(1)
    x = task.data.normalise(batch.inputs.to(like)).flatten(1)
    shares = tail.errors(tail.answers(x), labels) / len(batch)
    sent = next(iter(task.parameters.values())).dtype if wire is None else wire
    return peel_mask(shares, Wire.through(sent))


def peel_mask(shares: Float[Tensor, "k units"], wire: Wire) -> Replay:
    """The replay on every example's share of every row's bias entry."""
    examples, units = shares.shape
    size, active = shares.abs(), shares != 0
    total = size.sum(0)
    unit = torch.finfo(wire.computed).eps / 2
    noise = 3 * unit * active.sum(0).clamp_min(1).sqrt() * total + wire.unit * shares.sum(0).abs() + wire.least
    heard = active & (size > FACTOR * noise)
    silent = ~heard.any(1)
    left = torch.ones(examples, dtype=torch.bool, device=shares.device)
    alone = rounds = 0
    while True:
        fresh = _alone(active, heard, left)
        if not bool(fresh.any()):
            break
        left &= ~fresh
        rounds += 1
        alone = alone or int(fresh.sum())
    read = examples - int(left.sum())
    return Replay(
        examples=examples, units=units, alone=alone, read=read, silent=int((silent & left).sum()), rounds=rounds
    )


def _alone(
    active: Bool[Tensor, "k units"], heard: Bool[Tensor, "k units"], left: Bool[Tensor, " k"]
) -> Bool[Tensor, " k"]:
    """Examples that are left and drive some row that no other does that is left."""
    driving = active & left[:, None]
    return (driving & heard & (driving.sum(0) == 1)).any(1)
