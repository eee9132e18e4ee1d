"""Examples to compare with, in a quarter of the memory where they are pictures of eight bits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

AT_ONCE = 2**24
"""Bytes of examples that are worked on at a time."""


@dataclass(frozen=True, eq=False)
class Lent:
    """Examples of one shape, in the data's raw range, which give back bit for bit what was put in.

    Attributes:
        shape: of one example.
    """

    shape: tuple[int, ...]
    low: float
    high: float
    _kept: tuple[Tensor, ...]

    @staticmethod
    def of(
        examples: Iterable[Float[Tensor, " *shape"]], most: int, shape: tuple[int, ...], low: float, high: float
    ) -> Lent:
        """Takes at most so many examples one by one. Those that are 255ths of the range are kept as bytes."""
        place = torch.empty((most, *shape), dtype=torch.uint8)  # one piece, which what comes and goes cannot scatter
        kept = (_packed(x, slot, low, high) for x, slot in zip(examples, place, strict=False))
        return Lent(shape, low, high, tuple(kept))

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, indices: Iterable[int]) -> Float[Tensor, "k *shape"]:
        """Some of them."""
        chosen = [self._kept[i] for i in indices]
        found = torch.empty((len(chosen), *self.shape))
        for slot, kept in zip(found, chosen, strict=True):
            slot.copy_(_unpacked(kept, self.low, self.high))
        return found

    def reordered(self, order: Iterable[int]) -> Lent:
        """Those of these numbers, in this order."""
        return Lent(self.shape, self.low, self.high, tuple(self._kept[i] for i in order))

    def whole(self) -> Float[Tensor, "n *shape"]:
        """All of them."""
        return self.take(range(len(self)))


def in_chunks(examples: Float[Tensor, "n ..."] | Lent, size: int) -> Iterator[Float[Tensor, "k ..."]]:
    """The examples in order, so many at a time."""
    for first in range(0, len(examples), size):
        part = range(first, min(first + size, len(examples)))
        yield examples.take(part) if isinstance(examples, Lent) else examples[part.start : part.stop]


def some_of(examples: Float[Tensor, "n ..."] | Lent, indices: Sequence[int]) -> Float[Tensor, "k ..."]:
    """Examples by their numbers."""
    return examples.take(indices) if isinstance(examples, Lent) else examples[list(indices)]


def _packed(x: Tensor, place: Tensor, low: float, high: float) -> Tensor:
    if x.dtype == torch.float32:
        place.copy_((x - low).mul_(255 / (high - low)).round_().clamp_(0, 255))
        if torch.equal(_unpacked(place, low, high), x):
            return place
    return x.clone()


def _unpacked(kept: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * (kept.to(torch.float32) / 255) if kept.dtype == torch.uint8 else kept
