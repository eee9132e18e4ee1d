"""What a batch is made of: what a network is given, and what it is taught."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require

Shape = tuple[int, ...]


@runtime_checkable
class BatchPart(Protocol):
    """One part of every example.

    Attributes:
        shape: of one example's part.
        taught: it is what the network is taught (a target), not what it is given.
        whole: it is of whole numbers.
        classes: how many plain values it has, numbered from 0; 1 where it has no list of them.
    """

    @property
    def shape(self) -> Shape: ...
    @property
    def taught(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def classes(self) -> int: ...
    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lowest and highest raw number, one for all entries or one an entry."""
        ...

    def given(self, raw: Float[Tensor, "n *shape"]) -> Tensor:
        """What the loss is called with."""
        ...

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        """Raw examples in the range."""
        ...


class _Common:
    """What parts share."""

    shape: Shape
    taught: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    @property
    def classes(self) -> int:
        return 1

    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0,), (1.0,)

    def given(self, raw: Tensor) -> Tensor:
        return raw.round().long() if self.whole else raw

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        low, high = (torch.tensor(edge).expand(math.prod(self.shape)) for edge in self.range)
        flat = low + (high - low) * torch.rand(count, math.prod(self.shape), generator=generator)
        return self.given(flat.view(count, *self.shape))


def _checked_shape(shape: Shape, axes: int, words: str) -> None:
    fits = len(shape) == axes and all(isinstance(n, int) and n > 0 for n in shape)
    require(fits, "batch", f"has a part of shape {shape}", f"give {words}")


def _checked_range(low: float, high: float) -> None:
    require(high > low, "batch", f"has a part from {low:g} to {high:g}", "give low and high, in this order")


@dataclass(frozen=True)
class Image(_Common):
    """Pictures, channels first; the loss is given ``(x − mean) / std`` of raw numbers from `low` to `high`."""

    shape: Shape
    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    AXES: ClassVar[tuple[int, str]] = 3, "channels, height and width"

    def __post_init__(self) -> None:
        _checked_shape(self.shape, *self.AXES)
        _checked_range(self.low, self.high)
        per = all(len(v) in (1, self.shape[0]) for v in (self.mean, self.std)) and all(s > 0 for s in self.std)
        require(
            per, "batch", f"has a part of mean {self.mean} and std {self.std}", "give one of each, or one a channel"
        )

    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (self.low,), (self.high,)

    def given(self, raw: Tensor) -> Tensor:
        mean, std = (raw.new_tensor(v).view(-1, *[1] * (len(self.shape) - 1)) for v in (self.mean, self.std))
        return (raw - mean) / std

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        return self.low + (self.high - self.low) * torch.rand(count, *self.shape, generator=generator)


@dataclass(frozen=True)
class Volume(Image):
    """Volumes, channels first."""

    AXES: ClassVar[tuple[int, str]] = 4, "channels, depth, height and width"


@dataclass(frozen=True)
class Series(Image):
    """Signals over time, one row a channel, or one a step where the network has them so."""

    AXES: ClassVar[tuple[int, str]] = 2, "channels and steps"


@dataclass(frozen=True)
class Numbers(_Common):
    """A row of numbers, each in its own range.

    Attributes:
        count: how many.
        low, high: of all, or one for each.
    """

    count: int
    low: float | tuple[float, ...] = 0.0
    high: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        require(self.count > 0, "batch", f"has a part of {self.count} numbers", "give a positive count")
        low, high = self.range
        fits = all(len(edge) in (1, self.count) for edge in (low, high))
        require(fits, "batch", f"has {self.count} numbers and {len(low)} ranges", "give one range, or one each")
        for number in range(self.count):
            _checked_range(low[number % len(low)], high[number % len(high)])

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return (self.count,)

    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        low, high = (edge if isinstance(edge, tuple) else (float(edge),) for edge in (self.low, self.high))
        return low, high


@dataclass(frozen=True)
class Categories(_Common):
    """A row of categories, each a whole number below its count.

    Attributes:
        counts: of the categories of each column.
    """

    counts: tuple[int, ...]
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fits = bool(self.counts) and all(n > 1 for n in self.counts)
        require(fits, "batch", f"has categories {self.counts}", "give a count of at least two for each column")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return (len(self.counts),)

    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0,), tuple(float(n - 1) for n in self.counts)


@dataclass(frozen=True)
class Text(_Common):
    """Texts as the numbers of their tokens.

    Attributes:
        length: tokens of a text, filled up or cut.
        vocabulary: how many tokens there are.
        padding: the token that fills up; `None` where there is none.
    """

    length: int
    vocabulary: int
    padding: int | None = None
    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fits = self.length > 0 and self.vocabulary > 1
        words = f"has a text of {self.length} tokens, of {self.vocabulary}"
        require(fits, "batch", words, "give a positive length and the size of the vocabulary")
        inside = self.padding is None or 0 <= self.padding < self.vocabulary
        require(inside, "batch", f"pads texts with {self.padding} of {self.vocabulary}", "give one of the tokens")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return (self.length,)

    @property
    def range(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (0.0,), (float(self.vocabulary - 1),)
