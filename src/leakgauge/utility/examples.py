"""A whole data set in memory, a byte a value where that loses nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data import Source
from leakgauge.task import Batch, DataSpec


@dataclass(frozen=True, eq=False)
class Examples:
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
    def of(batch: Batch, data: DataSpec) -> Examples:
        """Keeps `batch` as bytes if they give it back exactly."""
        raw = ((batch.inputs - data.low) / data.range * 255).round().clamp(0, 255).to(torch.uint8)
        small = Examples(raw, batch.labels, data.low, data.range)
        return (
            small if torch.equal(small.all().inputs, batch.inputs) else Examples(batch.inputs, batch.labels, 0.0, 1.0)
        )

    @staticmethod
    def read(source: Source, data: DataSpec, most: int | None = None) -> Examples:
        """The first `most` examples of a source, or all of them."""
        n = len(source) if most is None else min(most, len(source))
        parts = [Examples.of(source.read(range(i, min(i + 5000, n))), data) for i in range(0, n, 5000)]
        if all(p.stored.dtype is torch.uint8 for p in parts):
            return Examples(torch.cat([p.stored for p in parts]), torch.cat([p.labels for p in parts]), *parts[0].scale)
        return Examples(torch.cat([p.all().inputs for p in parts]), torch.cat([p.labels for p in parts]), 0.0, 1.0)

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
