"""How many examples of a batch peeling would read, told from the client's own activations, without an attack."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakgauge.attacks.exact.candidates import LOOSE
from leakgauge.attacks.exact.peeling import readable_layer
from leakgauge.attacks.exact.residual import FACTOR, Shares, shares_of
from leakgauge.errors import require
from leakgauge.task import Batch, Task
from leakgauge.tensors import Wire
from leakgauge.view.entries import summed
from leakgauge.view.normal import look_at


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What `leakgauge.attacks.exact.Peeling` would do to one batch."""

    examples: int
    units: int
    alone: int  # examples that drive some unit alone, and are read at once
    read: int
    silent: int  # examples whose gradient is below the rounding of the update: nothing can read them
    rounds: int

    @property
    def rate(self) -> float:
        return self.read / self.examples


def replay(task: Task, batch: Batch, generator: torch.Generator, *, wire: torch.dtype | None = None) -> Replay | str:
    """Replays the peeling of one FedSGD update on the activation mask: who drives which unit of the first layer.

    Row i of the layer's gradient is a sum over the examples whose s·δ_ki is not zero. An example is read when a row is
    left to it alone and its share there exceeds the row's rounding; its shares are then taken out of all rows.
    Costs one gradient a unit and example, and the client's own knowledge: `batch` is its own, raw. A text says why
    peeling does not apply. `wire`: format in which the update is sent; that of the model unless given.
    """
    require(len(batch) > 0, "batch", "is empty", "give at least one example")
    sent = Wire.through(next(iter(task.parameters.values())).dtype if wire is None else wire)
    shares = _shares(task, batch, generator, sent)
    return shares if isinstance(shares, str) else peel_mask(shares, sent)


def measures(task: Task, batch: Batch, more: Batch, generator: torch.Generator) -> dict[str, Replay]:
    """What a client could do to close the channel, in words, and what peeling would read then, each measured by the
    same replay: fewer units, a mean subtracted, a larger batch.

    None is a guarantee: they say what `Peeling` reads at these examples and weights, without its search for the last.
    """
    sent = Wire.through(next(iter(task.parameters.values())).dtype)
    shares = _shares(task, batch, generator, sent)
    if isinstance(shares, str):
        return {}
    found: dict[str, Replay] = {}
    units = every = shares.value.shape[1]
    while units > 1 and peel_mask(shares.of(units), sent).read:
        units //= 2
    if units < every:
        found[f"a first layer of {units} unit{'s' * (units > 1)}"] = peel_mask(shares.of(units), sent)
    data = task.data
    channels = batch.inputs.flatten(2) if len(data.shape) > 1 else batch.inputs[:, None]
    mean = tuple(float(v) for v in channels.transpose(0, 1).flatten(1).double().mean(1))
    told = replay(replace(task, data=replace(data, mean=mean, std=(1.0,) * len(mean))), batch, generator)
    if isinstance(told, Replay):
        found["the mean subtracted from the inputs"] = told
    size, together = 2 * len(batch), Batch.join([batch, more])
    while size <= len(together):
        larger = replay(task, together.take(torch.arange(size)), generator)
        assert isinstance(larger, Replay)
        if larger.rate < 0.1 or 2 * size > len(together):
            found[f"a batch of {size}"] = larger
            break
        size *= 2
    return found


def _shares(task: Task, batch: Batch, generator: torch.Generator, wire: Wire) -> Shares | str:
    """Every example's share of every row's bias entry with its error, or why peeling does not apply."""
    plain = look_at(task).form
    task = task if plain is None else plain.task
    tail = readable_layer(task, generator, batch.inputs.new_zeros((), dtype=torch.float64))
    if isinstance(tail, str):
        return tail
    labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(1)
    x = task.data.normalise(batch.inputs.double()).flatten(1)
    reach = max(1.0, float(x.abs().max()))
    return shares_of(tail, x, labels, x.new_zeros(len(x)), scale=1 / len(batch), reach=reach, wire=wire)


def peel_mask(shares: Shares, wire: Wire) -> Replay:
    """The replay on every example's share of every row's bias entry, with errors as the attack has them.

    A row is off by its rounding, and by what the examples that were taken out of it carry: the error of their share,
    and their own, which is that of the best row that they were read from.
    """
    examples, units = shares.value.shape
    size, active = shares.value.abs(), shares.value != 0
    terms = active.sum(0).clamp_min(1)
    rounding = 3 * summed(wire, terms, size.sum(0)) + wire.errors(shares.value.sum(0))
    carried = torch.zeros_like(rounding)
    left = torch.ones(examples, dtype=torch.bool, device=size.device)
    alone = rounds = 0
    silent = ~(active & (size > FACTOR * rounding)).any(1)
    while True:
        driving = active & left[:, None]
        off = (rounding.square() + carried).sqrt() + shares.error
        heard = driving & (driving.sum(0) == 1) & (LOOSE * size > FACTOR * off)
        fresh = heard.any(1)
        if not bool(fresh.any()):
            break
        doubt = torch.where(heard, off / size.clamp_min(torch.finfo(size.dtype).tiny), torch.inf).amin(1)[fresh]
        carried = carried + (shares.error[fresh].square() + (doubt[:, None] * size[fresh]).square()).sum(0)
        left &= ~fresh
        rounds += 1
        alone = alone or int(fresh.sum())
    read = examples - int(left.sum())
    return Replay(
        examples=examples, units=units, alone=alone, read=read, silent=int((silent & left).sum()), rounds=rounds
    )
