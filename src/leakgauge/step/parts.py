"""Parts of a batch: what a network is given (pictures, numbers, texts) and taught (classes, values, masks)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leakgauge.batch import BatchPart, DataSpec, Shape
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
    """Texts as the numbers of their tokens, so many each, filled up with `padding` (where there is one) or cut;
    `vocabulary` is how many tokens there are."""
    words = f"has a text of {length} tokens, of {vocabulary}"
    require(length > 0 and vocabulary > 1, "batch", words, "give a positive length and the size of the vocabulary")
    inside = padding is None or 0 <= padding < vocabulary
    require(inside, "batch", f"pads texts with {padding} of {vocabulary}", "give one of the tokens")
    return DataSpec((length,), 1, 0.0, float(vocabulary - 1), vocabulary=vocabulary, padding=padding)


@dataclass(frozen=True)
class Numbers(BatchPart):
    """A row of so many numbers, each in its own range; `low` and `high` of all, or one for each."""

    count: int
    low: float | tuple[float, ...] = 0.0
    high: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        require(self.count > 0, "batch", f"has a part of {self.count} numbers", "give a positive count")
        low, high = (edge if isinstance(edge, tuple) else (float(edge),) for edge in (self.low, self.high))
        fits = all(len(edge) in (1, self.count) for edge in (low, high))
        require(fits, "batch", f"has {self.count} numbers and {len(low)} ranges", "give one range, or one each")
        for number in range(self.count):
            least, most = low[number % len(low)], high[number % len(high)]
            require(most > least, "batch", f"has a part from {least:g} to {most:g}", "give low and high, in this order")
        self._states(shape=(self.count,), edges=(low, high))


@dataclass(frozen=True)
class Categories(BatchPart):
    """A row of categories, each a whole number below its count."""

    counts: tuple[int, ...]
    whole = True

    def __post_init__(self) -> None:
        fits = bool(self.counts) and all(n > 1 for n in self.counts)
        require(fits, "batch", f"has categories {self.counts}", "give a count of at least two for each column")
        self._states(shape=(len(self.counts),), edges=((0.0,), tuple(float(n - 1) for n in self.counts)))


class Target(BatchPart):
    """What a network is taught, not what it is given.

    Where nothing is known of a target, its plainest values stand for it: whole numbers [n] below `classes`, which
    `given` turns into its form.
    """

    def _states(self, **facts: Any) -> None:
        super()._states(**facts)
        fits = self.classes > 0 and all(n > 0 for n in self.shape)
        require(fits, "batch", f"has a target {self}", "give positive numbers")

    def given(self, raw: Tensor) -> Tensor:
        if raw.ndim == 1 and not raw.is_floating_point() and (self.shape or not self.whole):
            return self._of_plain(raw)
        return raw.round().long() if self.whole and raw.is_floating_point() else raw

    def _of_plain(self, raw: Tensor) -> Tensor:
        return raw.view(-1, *[1] * len(self.shape)).expand(-1, *self.shape).contiguous()  # losses may view it flat

    def sought(self, count: int) -> Shape | None:
        """Of the numbers that stand for so many targets in a search; `None` where no search moves them."""
        return None if self.whole else (count, *self.shape)

    def soft(self, numbers: Tensor) -> Tensor:
        """Targets that these numbers stand for, between those that there are, differentiable."""
        return numbers

    def settled(self, soft: Tensor) -> Tensor:
        """The nearest that there are."""
        return soft

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        if not self.whole:
            return super().made_up(count, generator)
        return torch.randint(self.classes, (count, *self.shape), generator=generator)


@dataclass(frozen=True)
class Classes(Target):
    """One of `count` classes; shares of all of them, that sum to one, are taken too."""

    count: int
    whole = True

    def __post_init__(self) -> None:
        self._states(shape=(), classes=self.count, edges=((0.0,), (float(self.count - 1),)))

    def given(self, raw: Tensor) -> Tensor:
        return raw

    def sought(self, count: int) -> Shape | None:
        return count, self.count

    def soft(self, numbers: Tensor) -> Tensor:
        return numbers.softmax(1)

    def settled(self, soft: Tensor) -> Tensor:
        return soft.argmax(1)


@dataclass(frozen=True)
class Labels(Target):
    """Several labels that hold or not: [n, count] of 0 and 1."""

    count: int

    def __post_init__(self) -> None:
        self._states(shape=(self.count,), classes=self.count)

    def _of_plain(self, raw: Tensor) -> Tensor:
        return (raw[:, None] == torch.arange(self.count, device=raw.device)).to(torch.get_default_dtype())

    def soft(self, numbers: Tensor) -> Tensor:
        return numbers.sigmoid()

    def settled(self, soft: Tensor) -> Tensor:
        return soft.round()

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        return super().made_up(count, generator).round()


@dataclass(frozen=True)
class Values(Target):
    """Real numbers: [n] of one, [n, count] of several, usually from `low` to `high`; errors are shown as shares of
    that."""

    count: int = 1
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._states(shape=() if self.count == 1 else (self.count,), edges=((self.low,), (self.high,)))
        require(self.high > self.low, "batch", f"has values from {self.low:g} to {self.high:g}", "give low and high")

    def _of_plain(self, raw: Tensor) -> Tensor:
        return super()._of_plain(raw) + (self.low + self.high) / 2


@dataclass(frozen=True)
class Mask(Target):
    """A class for every place (height and width, or depth too), [n, *places]; `count` 1 is a single one that is there
    or not, as 0 and 1."""

    count: int
    places: Shape
    whole = True

    def __post_init__(self) -> None:
        classes = max(self.count, 2)
        self._states(shape=self.places, classes=classes, edges=((0.0,), (float(classes - 1),)))

    def given(self, raw: Tensor) -> Tensor:
        if raw.ndim < len(self.places) + 2:
            return super().given(raw)
        return raw if self.count > 1 else raw.squeeze(1)

    def sought(self, count: int) -> Shape | None:
        return count, self.count, *self.places

    def soft(self, numbers: Tensor) -> Tensor:
        """[n, classes, *places]."""
        return numbers.softmax(1) if self.count > 1 else numbers.sigmoid()

    def settled(self, soft: Tensor) -> Tensor:
        return soft.argmax(1) if self.count > 1 else soft[:, 0].round().long()


@dataclass(frozen=True)
class NextToken(Target):
    """The token that follows at every place, [n, length]; −100 where none is asked for."""

    vocabulary: int
    length: int
    whole = True

    def __post_init__(self) -> None:
        edges = (-100.0,), (float(self.vocabulary - 1),)
        self._states(shape=(self.length,), classes=self.vocabulary, edges=edges)


@dataclass(frozen=True)
class TimeToEvent(Target):
    """[n, 2]: the time to an event or to the end of the observation, and whether the event came (1) or not (0)."""

    longest: float = 10.0

    def __post_init__(self) -> None:
        require(self.longest > 0, "batch", f"has times to {self.longest:g}", "give a positive longest time")
        self._states(shape=(2,), edges=((0.0, 0.0), (self.longest, 1.0)))

    def sought(self, count: int) -> Shape | None:
        del count  # who comes before whom does not change by degrees
        return None

    def _of_plain(self, raw: Tensor) -> Tensor:
        times = self.longest * torch.arange(1, len(raw) + 1, device=raw.device) / (len(raw) + 1)
        return torch.stack([times, torch.ones_like(times)], 1)

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        times, came = super().made_up(count, generator).unbind(1)
        return torch.stack([times, (came < 0.7).float()], 1)
