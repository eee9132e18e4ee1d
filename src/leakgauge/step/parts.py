"""What a network is given: pictures, volumes, series, numbers, categories, texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakgauge.batch import BatchPart, DataSpec, Edges, Shape
from leakgauge.errors import require

Floats = tuple[float, ...]


def _tensor(shape: Shape, axes: str, low: float, high: float, mean: Floats, std: Floats) -> DataSpec:
    fits = len(shape) == len(axes.split(",")) and all(isinstance(n, int) and n > 0 for n in shape)
    require(fits, "batch", f"has a part of shape {shape}", f"give {axes}")
    return DataSpec(shape, 1, low, high, mean, std)


def Image(shape: Shape, low: float = 0.0, high: float = 1.0, mean: Floats = (0.0,), std: Floats = (1.0,)) -> DataSpec:
    """Pictures, channels first; the loss is given ``(x − mean) / std`` of raw numbers from `low` to `high`."""
    return _tensor(shape, "channels, height, width", low, high, mean, std)


def Volume(shape: Shape, low: float = 0.0, high: float = 1.0, mean: Floats = (0.0,), std: Floats = (1.0,)) -> DataSpec:
    """Volumes, channels first; as `Image`."""
    return _tensor(shape, "channels, depth, height, width", low, high, mean, std)


def Series(shape: Shape, low: float = 0.0, high: float = 1.0, mean: Floats = (0.0,), std: Floats = (1.0,)) -> DataSpec:
    """Signals over time, one row a channel, or one a step where the network has them so; as `Image`."""
    return _tensor(shape, "channels, steps", low, high, mean, std)


def Text(length: int, vocabulary: int, padding: int | None = None) -> DataSpec:
    """Texts as the numbers of their tokens.

    Args:
        length: tokens of a text, filled up or cut.
        vocabulary: how many tokens there are.
        padding: the token that fills up; `None` where there is none.
    """
    words = f"has a text of {length} tokens, of {vocabulary}"
    require(length > 0 and vocabulary > 1, "batch", words, "give a positive length and the size of the vocabulary")
    inside = padding is None or 0 <= padding < vocabulary
    require(inside, "batch", f"pads texts with {padding} of {vocabulary}", "give one of the tokens")
    return DataSpec((length,), 1, 0.0, float(vocabulary - 1), vocabulary=vocabulary, padding=padding)


@dataclass(frozen=True)
class Numbers(BatchPart):
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
        low, high = self.edges
        fits = all(len(edge) in (1, self.count) for edge in (low, high))
        require(fits, "batch", f"has {self.count} numbers and {len(low)} ranges", "give one range, or one each")
        for number in range(self.count):
            least, most = low[number % len(low)], high[number % len(high)]
            require(most > least, "batch", f"has a part from {least:g} to {most:g}", "give low and high, in this order")

    @property
    def shape(self) -> Shape:  # type: ignore[override]
        return (self.count,)

    @property
    def edges(self) -> Edges:
        low, high = (edge if isinstance(edge, tuple) else (float(edge),) for edge in (self.low, self.high))
        return low, high


@dataclass(frozen=True)
class Categories(BatchPart):
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
    def edges(self) -> Edges:
        return (0.0,), tuple(float(n - 1) for n in self.counts)
