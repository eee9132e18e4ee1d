"""Secure aggregation: the server sees the mean over a cohort, never one client's update."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from leakgauge.clients.local_training import FedSGD, LocalTraining
from leakgauge.clients.protocol import GradientRule, GradientSum, Protocol
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind

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
