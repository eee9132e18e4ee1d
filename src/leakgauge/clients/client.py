"""The one path from a batch to an update, for clients and for attackers who simulate them; secure aggregation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from leakgauge.clients.local_training import FedSGD, LocalTraining
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol, example_rule, mean_gradient
from leakgauge.defenses import AttackerView, Defense, NoDefense, view_of
from leakgauge.defenses.steps import DefenseStep, EntryGrid, Noise, Nonlinear
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors, weighted_mean
from leakgauge.update import Update, UpdateHeader, UpdateKind


@CLIENTS.register("secure-aggregation")
@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Protocol):
    """Mean of the cohort's updates, weighted by example counts: Σ nᵢ·uᵢ / Σ nᵢ.

    The batch handed to `local_training` holds all clients' examples, one client after the other. No
    guarantee of its own against a server that inverts the mean: the cohort is only a larger batch. Each client
    runs all stages of its own defence, with its own draws, before the mean: see `leakgauge.clients.sent_update`.
    """

    cohort: int
    client: Protocol = field(default_factory=FedSGD)  #: what each of the `cohort` runs
    sizes: tuple[int, ...] | None = None  #: examples of each client; `None` shares the batch equally.

    def __post_init__(self) -> None:
        require(self.cohort > 0, "cohort", f"is {self.cohort}", "give a positive number of clients")
        fits = self.sizes is None or (len(self.sizes) == self.cohort and min(self.sizes) > 0)
        problem = f"{self.sizes} are not {self.cohort} positive counts"
        require(fits, "sizes", problem, "give one positive count a client")

    @property
    def kind(self) -> UpdateKind:
        return self.client.kind

    def counts(self, examples: int) -> tuple[int, ...]:
        if self.sizes is None:
            problem = f"{self.cohort} clients cannot share {examples} examples equally"
            require(examples % self.cohort == 0, "cohort", problem, "change data.batch or give sizes")
            return (examples // self.cohort,) * self.cohort
        total = sum(self.sizes)
        require(total == examples, "sizes", f"sum to {total} but the batch has {examples}", "make them agree")
        return self.sizes

    def steps(self, examples: int) -> int:
        return max(self.client.steps(n) for n in self.counts(examples)) * self.cohort

    def clients(self, examples: int) -> tuple[tuple[Protocol, int], ...]:
        return tuple(one for count in self.counts(examples) for one in self.client.clients(count))

    def parts(self, examples: int) -> tuple[int, ...]:
        return tuple(part for client, count in self.clients(examples) for part in client.parts(count))

    def linear(self, examples: int) -> GradientSum | None:
        """One sum where the clients' are alike and take one step each; else all their steps, at points of their own."""
        if not self.aggregates:
            return self.client.linear(examples)
        each = [(client.linear(count), count / examples) for client, count in self.clients(examples)]
        told = [(one, share) for one, share in each if one is not None and not one.shortened]
        if len(told) < len(each):
            return None
        first = told[0][0]
        if len(first.weights) == 1 and all((one.weights, one.decay) == (first.weights, first.decay) for one, _ in told):
            return replace(first, sizes=(examples,))
        weights = tuple(share * weight for one, share in told for weight in one.weights)
        sizes = tuple(size for one, _ in told for size in one.sizes)
        return GradientSum(weights, sizes, sum(share * one.decay for one, share in told))

    @property
    def aggregates(self) -> bool:
        return self.cohort > 1 or self.client.aggregates

    @property
    def alone(self) -> Protocol:
        return self if self.cohort > 1 else self.client.alone

    @property
    def loop(self) -> LocalTraining | None:
        return self.client.loop

    def with_loop(self, change: Callable[[LocalTraining], LocalTraining]) -> Protocol:
        return replace(self, client=self.client.with_loop(change))

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        return self.mean_of(batch, draws, lambda own, its: self.client.local_training(task, own, its, gradient))

    def mean_of(
        self, batch: Batch, draws: Draws, one: Callable[[Batch, Draws], tuple[Tensors, Tensors]]
    ) -> tuple[Tensors, Tensors]:
        """Mean of what `one` makes of each client's examples and draws, of updates and of floating buffers alike."""
        if self.cohort == 1:
            return one(batch, draws)
        updates, buffers = zip(*(one(own, its) for own, its in self.each(batch, draws)), strict=True)
        counts = self.counts(len(batch))
        return weighted_mean(counts, updates), weighted_mean(counts, buffers)

    def each(self, batch: Batch, draws: Draws) -> Iterator[tuple[Batch, Draws]]:
        for client, index in enumerate(torch.arange(len(batch)).split(list(self.counts(len(batch))))):
            yield batch.take(index.to(batch.labels.device)), draws.of("client", client)


def cohort_view(protocol: Protocol, defense: Defense, update: Update, draws: Draws | None) -> AttackerView:
    """What objectives may use of a mechanism. Behind secure aggregation that is the scale of the mean's noise and
    of its rounding alone, as if the largest entry of the mean were each client's own part of it.

    Where the noise follows each update's size it is estimated from the mean as if the clients' updates stood at right
    angles; too large, by up to the root of their number, where they agree."""
    count = update.header.example_count
    if not protocol.aggregates:
        return view_of(defense, update, draws)
    if draws is not None or count is None:
        return AttackerView()
    grid, clients = view_of(defense, update, None).rounding, protocol.clients(count)
    noise = _noise_of([n for _, n in clients], defense, update)
    steps: tuple[DefenseStep, ...] = (Nonlinear(by="averaging"),)
    if noise is not None:
        steps = *steps, Noise(gaussian=False, deviation=noise)
    if grid is not None:
        steps = *steps, EntryGrid(width=lambda _: map_tensors(lambda t: len(clients) * t, grid))
    return AttackerView(steps, update.tensors)


def _noise_of(counts: Sequence[int], defense: Defense, update: Update) -> Tensors | None:
    """Independent noises of the clients: Σ (nᵢ/N)² σᵢ² is the variance on the mean. Of σᵢ² = a + b‖gᵢ‖² the second part
    is b‖Σ (nᵢ/N) gᵢ‖² on the mean, at right angles; doubling the update tells the parts apart."""

    def on_mean(once: Tensor, twice: Tensor, share: float) -> Tensor:
        relative = ((twice.square() - once.square()) / 3).clamp_min(0)
        return share**2 * (once.square() - relative).clamp_min(0) + share * relative

    double, parts = map_tensors(lambda t: 2 * t, update.tensors), list[Tensors]()
    for n in counts:
        header = replace(update.header, example_count=n)
        once, twice = (view_of(defense, Update(t, header), None).noise_scale for t in (update.tensors, double))
        if once is None or twice is None:
            return None
        parts.append(map_tensors(partial(on_mean, share=n / sum(counts)), once, twice))
    return map_tensors(lambda *one: torch.stack(one).sum(0).sqrt(), *parts)


def raw_update(task: Task, protocol: Protocol, batch: Batch, draws: Draws, defense: Defense) -> tuple[Tensors, Tensors]:
    """Everything up to the update stage: local training with the defence's example stage inside. `task` is already the
    defended one (`Defense.on_task`). Raises `InputError` where BatchNorm in train mode has one value a channel."""
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


def sent_update(protocol: Protocol, batch: Batch, draws: Draws, stages: Stages) -> tuple[Tensors, Tensors]:
    """What the server sees: `stages` of the only client, or their mean over a cohort, each client with its own draws.

    Clients and the attackers who simulate them both come through here, so that a defence of the batch or the
    update acts on each client of a cohort, never on the mean: noise and top-k of the mean would look stronger."""
    if isinstance(protocol, SecureAggregation):
        return protocol.mean_of(batch, draws, lambda own, its: sent_update(protocol.client, own, its, stages))
    return stages(protocol, batch, draws)


def trained_on(protocol: Protocol, batch: Batch, draws: Draws, defense: Defense) -> Batch:
    """The examples as the clients trained on them: `batch`, but for what a defence of the batch changed."""
    protocol = protocol.alone
    if not isinstance(protocol, SecureAggregation):
        return defense.on_batch(batch, draws.generator("batch"))
    return Batch.join([trained_on(protocol.client, own, its, defense) for own, its in protocol.each(batch, draws)])


def refuse_combination(protocol: Protocol, defense: Defense) -> None:
    """Raises `InputError` where a cohort's simulation would need what only each client's own update shows: the zeros of
    a mask that was fitted to its data (Soteria)."""
    problem = f"{defense} fits a mask to each client's data, which cannot be told from a mean over a cohort"
    hint = "audit the defence with fedsgd or fedavg, or secure aggregation without it"
    require(not (protocol.aggregates and defense.overrides("for_batch")), "defenses", problem, hint)


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

    `batch` is a `Batch`, or the named parts of `Task.of_step` as a dict, tuple or dataclass of tensors. `task_stage`:
    whether the defence still has to change the task; not from the second round on, when the parameters that it added
    have been trained. Raises `InputError`: a batch with labels that the model has no output for, with NaN or infinity,
    or with parts that the task does not have so.
    """
    batch = task.layout.batch(batch)
    if task.named is None and not batch.labels.is_floating_point() and len(batch.labels):
        low, high = int(batch.labels.min()), int(batch.labels.max())
        inside = low >= 0 and high < task.outputs
        require(inside, "batch.labels", f"go from {low} to {high}", f"give classes from 0 to {task.outputs - 1}")
    finite = bool(batch.inputs.isfinite().all())
    require(finite, "batch.inputs", "hold NaN or infinity", "clean the data: no client can train on them")
    applied = defense or NoDefense()
    refuse_combination(protocol, applied)
    defended = applied.on_task(task) if task_stage else task

    def stages(protocol: Protocol, batch: Batch, draws: Draws) -> tuple[Tensors, Tensors]:
        batch = applied.on_batch(batch, draws.generator("batch"))
        bound = applied.for_batch(defended, batch)
        raw, buffers = raw_update(defended, protocol, batch, draws, bound)
        return bound.on_update(map_tensors(lambda t: t.detach(), raw), draws.generator("update")), buffers

    tensors, buffers = sent_update(protocol, batch, draws, stages)
    header = UpdateHeader(protocol.kind, len(batch) if send_example_count else None, {"protocol": repr(protocol)})
    return Update(tensors, header, {k: v.detach() for k, v in buffers.items()} if send_buffers else None)
