"""Secure aggregation: the server sees the mean over a cohort, and what of a defence that shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.clients.local_training import FedSGD, LocalTraining
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol
from leakgauge.defenses import AttackerView, Defense, view_of
from leakgauge.defenses.steps import DefenseStep, EntryGrid, Noise, Nonlinear
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateKind

OneClient = Callable[[Batch, Draws], tuple[Tensors, Tensors]]
"""``(a client's examples, its draws) → (update, buffers)``."""


@CLIENTS.register("secure-aggregation")
@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Protocol):
    """Mean of the cohort's updates, weighted by example counts: Σ nᵢ·uᵢ / Σ nᵢ.

    The batch handed to `local_training` holds all clients' examples, one client after the other. No
    guarantee of its own against a server that inverts the mean: the cohort is only a larger batch. Each client
    runs all stages of its own defence, with its own draws, before the mean: see `leakgauge.clients.sent_update`.

    Attributes:
        cohort: number of clients.
        client: what each of them runs.
        sizes: examples of each client; `None` shares the batch equally.
    """

    cohort: int
    client: Protocol = field(default_factory=FedSGD)
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require(self.cohort > 0, "cohort", f"is {self.cohort}", "give a positive number of clients")
        fits = self.sizes is None or (len(self.sizes) == self.cohort and min(self.sizes) > 0)
        require(
            fits, "sizes", f"{self.sizes} are not {self.cohort} positive counts", "give one positive count a client"
        )

    @property
    def kind(self) -> UpdateKind:
        """That of the clients' updates."""
        return self.client.kind

    def counts(self, examples: int) -> tuple[int, ...]:
        """Examples of each client."""
        if self.sizes is not None:
            if sum(self.sizes) != examples:
                raise InputError("sizes", f"sum to {sum(self.sizes)} but the batch has {examples}", "make them agree")
            return self.sizes
        if examples % self.cohort:
            raise InputError(
                "cohort",
                f"{self.cohort} clients cannot share {examples} examples equally",
                "change data.batch or give sizes",
            )
        return (examples // self.cohort,) * self.cohort

    def steps(self, examples: int) -> int:
        return max(self.client.steps(n) for n in self.counts(examples)) * self.cohort

    def clients(self, examples: int) -> tuple[tuple[Protocol, int], ...]:
        every = (self.client.clients(count) for count in self.counts(examples))
        return tuple(one for members in every for one in members)

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

    def mean_of(self, batch: Batch, draws: Draws, one: OneClient) -> tuple[Tensors, Tensors]:
        """Mean of what `one` makes of each client's examples and draws, of updates and of floating buffers alike."""
        if self.cohort == 1:
            return one(batch, draws)
        updates, buffers = zip(*(one(own, its) for own, its in self.each(batch, draws)), strict=True)
        weights = [n / len(batch) for n in self.counts(len(batch))]

        def mean(*values: Tensor) -> Tensor:
            return torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(0)

        averaged = {k: mean(*(b[k] for b in buffers)) if v.is_floating_point() else v for k, v in buffers[0].items()}
        return map_tensors(mean, *updates), averaged

    def each(self, batch: Batch, draws: Draws) -> Iterator[tuple[Batch, Draws]]:
        """Examples and draws of each client of the cohort."""
        for client, index in enumerate(torch.arange(len(batch)).split(list(self.counts(len(batch))))):
            yield batch.take(index.to(batch.labels.device)), draws.of("client", client)


def cohort_view(protocol: Protocol, defense: Defense, update: Update, draws: Draws | None) -> AttackerView:
    """What objectives may use of a mechanism. Behind secure aggregation that is the scale of the mean's noise and
    of its rounding alone, as if the largest entry of the mean were each client's own part of it.

    Where the noise follows each update's size it is estimated from the mean as if the clients' updates stood at right
    angles; too large, by up to the root of their number, where they agree.
    """
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
    """Independent noises of the clients: Σ (nᵢ/N)² σᵢ² is the variance on the mean.

    Of σᵢ² = a + b‖gᵢ‖² the second part is b‖Σ (nᵢ/N) gᵢ‖² on the mean, at right angles: what `b` makes of the mean.
    Doubling the update tells the parts apart.
    """
    double = map_tensors(lambda t: 2 * t, update.tensors)
    variance: Tensors | None = None
    for n in counts:
        header = replace(update.header, example_count=n)
        once, twice = (view_of(defense, Update(t, header), None).noise_scale for t in (update.tensors, double))
        if once is None or twice is None:
            return None
        share = n / sum(counts)
        own = map_tensors(lambda s, d, w=share: _on_mean(s, d, w), once, twice)
        variance = own if variance is None else map_tensors(torch.add, variance, own)
    return None if variance is None else map_tensors(torch.sqrt, variance)


def _on_mean(once: Tensor, twice: Tensor, share: float) -> Tensor:
    """One client's part of the variance on the mean, from the noise at the mean and at twice the mean."""
    relative = ((twice.square() - once.square()) / 3).clamp_min(0)
    return share**2 * (once.square() - relative).clamp_min(0) + share * relative
