"""Secure aggregation: the server sees the mean over a cohort, never one client's update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from leakgauge.clients.local_training import FedSGD
from leakgauge.clients.protocol import GradientRule, Protocol
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
class SecureAggregation:
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

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        return self.mean_of(batch, draws, lambda own, its: self.client.local_training(task, own, its, gradient))

    def mean_of(self, batch: Batch, draws: Draws, one: OneClient) -> tuple[Tensors, Tensors]:
        """Mean of what `one` makes of each client's examples and draws, of updates and of floating buffers alike."""
        counts = list(self.counts(len(batch)))
        inputs, labels = torch.split(batch.inputs, counts), torch.split(batch.labels, counts)
        updates, buffers = [], []
        for client, (x, y) in enumerate(zip(inputs, labels, strict=True)):
            update, after = one(Batch(x, y), self.draws_of(draws, client))
            updates.append(update)
            buffers.append(after)
        weights = [n / sum(counts) for n in counts]

        def mean(*values: Tensor) -> Tensor:
            return torch.stack([w * v for w, v in zip(weights, values, strict=True)]).sum(0)

        averaged = {k: mean(*(b[k] for b in buffers)) if v.is_floating_point() else v for k, v in buffers[0].items()}
        return map_tensors(mean, *updates), averaged

    @staticmethod
    def draws_of(draws: Draws, client: int) -> Draws:
        """The draws of one client of the cohort."""
        return draws.of("client", client)
