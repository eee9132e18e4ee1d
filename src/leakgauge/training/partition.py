"""Who holds which examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data import Source
from leakgauge.errors import require
from leakgauge.task import Batch, DataSpec

Hands = tuple[tuple[int, ...], ...]
"""Indices of the examples of each client."""


def dirichlet_partition(labels: Int[Tensor, " n"], clients: int, alpha: float, generator: torch.Generator) -> Hands:
    """Deals every example to exactly one client.

    For each class the clients' shares are drawn from Dirichlet(α, …, α), and the examples of that class, in random
    order, are cut at the cumulated shares (Hsu et al., 2019, as federated benchmarks implement it). Small α gives
    each client few classes; α → ∞ gives all the same mix.

    Differs: a client that would get nothing takes one example of the largest, so that everybody can be asked.

    Args:
        labels: of the examples, any integers.
        clients: how many.
        alpha: α > 0; federated papers use 0.1 to 1.

    Raises:
        InputError: fewer examples than clients, or α that is not positive.
    """
    require(clients > 0, "clients", f"is {clients}", "give a positive number")
    require(alpha > 0, "alpha", f"is {alpha}", "give a positive number, e.g. 0.5")
    require(
        len(labels) >= clients, "clients", f"are {clients} for {len(labels)} examples", "give each at least one example"
    )
    shares = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    hands: list[list[int]] = [[] for _ in range(clients)]
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        ends = np.cumsum(shares.dirichlet(np.full(clients, alpha)))[:-1]
        cuts = np.rint(ends * len(members)).astype(int).tolist()
        for hand, part in zip(hands, members.tensor_split(cuts), strict=True):
            hand += part.tolist()
    for hand in hands:
        if not hand:
            hand.append(max(hands, key=len).pop())
    return tuple(tuple(sorted(hand)) for hand in hands)


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """All examples of a source. Bytes hold pictures exactly, in a quarter of the memory; other data stay floats.

    Attributes:
        stored: ``(n, *shape)``, uint8 or float.
        labels: ``(n,)``.
        low, range: what bytes 0 and 255 stand for.
    """

    stored: Tensor
    labels: Int[Tensor, " n"]
    low: float
    range: float

    @staticmethod
    def of(batch: Batch, data: DataSpec) -> StoredExamples:
        """Keeps `batch` as bytes if they give it back exactly."""
        raw = ((batch.inputs - data.low) / data.range * 255).round().clamp(0, 255).to(torch.uint8)
        small = StoredExamples(raw, batch.labels, data.low, data.range)
        exact = torch.equal(small.all().inputs, batch.inputs)
        return small if exact else StoredExamples(batch.inputs, batch.labels, 0.0, 1.0)

    @staticmethod
    def read(source: Source, data: DataSpec, most: int | None = None) -> StoredExamples:
        """The first `most` examples of a source, or all of them."""
        n = len(source) if most is None else min(most, len(source))
        parts = [StoredExamples.of(source.read(range(i, min(i + 5000, n))), data) for i in range(0, n, 5000)]
        labels = torch.cat([p.labels for p in parts])
        if all(p.stored.dtype is torch.uint8 for p in parts):
            return StoredExamples(torch.cat([p.stored for p in parts]), labels, *parts[0].scale)
        return StoredExamples(torch.cat([p.all().inputs for p in parts]), labels, 0.0, 1.0)

    @property
    def scale(self) -> tuple[float, float]:
        """`low` and `range`."""
        return self.low, self.range

    def __len__(self) -> int:
        return len(self.labels)

    def all(self) -> Batch:
        """Everything as floats."""
        return self.take(torch.arange(len(self)))

    def take(self, index: Tensor) -> Batch:
        """The examples at `index`, raw."""
        found = self.stored[index]
        if found.dtype is torch.uint8:
            found = found.float() / 255
            if self.scale != (0.0, 1.0):
                found = found * self.range + self.low
        return Batch(found, self.labels[index])
