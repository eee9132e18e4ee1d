"""Examples: their format, and a batch of them with labels."""

import itertools
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from leakgauge.errors import FOREIGN, require

SIDES = (8, 16, 28, 32, 64, 96, 128, 224, 256)  # sides of pictures that networks are made for

Shape = tuple[int, ...]
Edges = tuple[tuple[float, ...], tuple[float, ...]]


class BatchPart:
    """One part of every example. A part of one's own inherits from it and states its `shape`."""

    shape: Shape  #: of one example's part
    classes: int = 1  #: how many plain values it has, numbered from 0; 1 where it has no list of them.
    edges: Edges = ((0.0,), (1.0,))  #: lowest and highest raw number, one for all entries or one an entry
    whole: bool = False  #: it is of whole numbers

    def _states(self, **facts: Any) -> None:
        """What follows from the fields of a frozen part."""
        vars(self).update(facts)

    def given(self, raw: Float[Tensor, "n *shape"]) -> Tensor:
        """What the loss is called with."""
        return raw.round().long() if self.whole else raw

    def made_up(self, count: int, generator: torch.Generator) -> Tensor:
        """Raw examples in the range."""
        size = math.prod(self.shape)
        low, high = (torch.tensor(edge).expand(size) for edge in self.edges)
        raw = (low + (high - low) * torch.rand(count, size, generator=generator)).view(count, *self.shape)
        return raw.round().long() if self.whole else raw


@dataclass(frozen=True)
class DataSpec(BatchPart):
    """Format of one example."""

    shape: Shape  #: of one example, e.g. ``(3, 32, 32)``; not necessarily an image.
    classes: int = 1  #: number of labels
    low: float = 0.0  #: low, high: the true range of the raw data; attacks stay in it and scores use it.
    high: float = 1.0
    mean: tuple[float, ...] = (0.0,)  #: mean, std: per channel (or one value); the model sees ``(x - mean) / std``.
    std: tuple[float, ...] = (1.0,)
    #: number of tokens where an example is a text, given by the whole numbers of its tokens; 0 where it is of real
    #: numbers.
    vocabulary: int = 0
    padding: int | None = None  #: the token that fills up short texts and says nothing; `None` where there is none.

    def __post_init__(self) -> None:
        require(self.high > self.low, "data.high", "must exceed data.low", "give the data's range")
        require(all(s > 0 for s in self.std), "data.std", "must be positive", "give one value a channel")
        for name, values in (("mean", self.mean), ("std", self.std)):
            fits = len(values) == 1 or (bool(self.shape) and len(values) == self.shape[0])
            problem = f"has {len(values)} values for shape {self.shape}"
            require(fits, f"data.{name}", problem, "give one, or one a channel")
        high = self.vocabulary - 1 if self.is_text else self.high
        self._states(whole=self.is_text, edges=((float(self.low),), (float(high),)))

    @property
    def range(self) -> float:
        """Width of the data range, the ``data_range`` of PSNR and SSIM."""
        return self.high - self.low

    @property
    def is_image(self) -> bool:
        """Channels first, one or three of them, and two spatial axes."""
        return len(self.shape) == 3 and self.shape[0] in (1, 3)

    @property
    def is_volume(self) -> bool:
        """Channels first, and three spatial axes."""
        return len(self.shape) == 4

    def mended(self, runs: Callable[[Tensor], object]) -> str:
        """The plan's keys with which a network takes the data, found by trying other channels, then other sizes. `runs`
        calls it on two examples, and raises where it does not take them."""
        if not self.is_image:
            return "data.source"
        own, *size = self.shape
        for channels, sides in itertools.product((own, 1, 3), (size, *([s, s] for s in SIDES))):
            with suppress(*FOREIGN), torch.no_grad():
                runs(torch.zeros(2, channels, *sides))
                keys = [f"data.channels: {channels}"] * (channels != own) + [f"data.size: {sides[0]}"] * (sides != size)
                return " and ".join(keys)
        return "data.size, data.channels"

    @property
    def is_text(self) -> bool:
        """Whether examples are sequences of tokens."""
        return self.vocabulary > 0

    def given(self, x: Float[Tensor, "n *shape"]) -> Tensor:
        """What the model is called with: normalised numbers, or the whole numbers of tokens."""
        return x.round().long() if self.is_text else self.normalise(x)

    def _per_channel(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        # Under torch.func, older versions of torch refuse `like.new_tensor`.
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, *([1] * (len(self.shape) - 1)))

    def normalise(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
        """Raw data to model input."""
        return (x - self._per_channel(self.mean, x)) / self._per_channel(self.std, x)

    def denormalise(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *shape"]:
        """Model input to raw data; the inverse of `normalise`."""
        return z * self._per_channel(self.std, z) + self._per_channel(self.mean, z)


@dataclass(frozen=True, eq=False)
class Batch:
    """Raw examples and their labels: class indices, or soft labels that sum to one.

    A client's batch is the truth; only `leakgauge.study.evaluate` may hold it next to a result.
    """

    inputs: Float[Tensor, "n *shape"]
    labels: Int[Tensor, " n"] | Float[Tensor, "n classes"]

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def take(self, index: Tensor) -> "Batch":
        return Batch(self.inputs[index], self.labels[index])

    @staticmethod
    def join(batches: "list[Batch]") -> "Batch":
        """All examples of several clients, one client after the other; soft labels in as many columns as the widest
        have, the classes beyond without weight."""
        labels = [b.labels for b in batches]
        if any(own.is_floating_point() and own.ndim == 2 for own in labels):
            width = max(own.shape[1] for own in labels)
            labels = [F.pad(own, (0, width - own.shape[1])) for own in labels]
        return Batch(torch.cat([b.inputs for b in batches]), torch.cat(labels))
