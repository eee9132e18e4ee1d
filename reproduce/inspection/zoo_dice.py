"""Random choices for the zoo, each from one seeded generator."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


class Dice:
    """Draws of every kind from `generator`; the order of the calls is part of the seed's meaning."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def pick(self, options: Sequence[T]) -> T:
        """One of them, all equally likely; repeat an option to weigh it."""
        return options[int(torch.randint(len(options), (), generator=self.generator))]

    def whole(self, low: int, high: int) -> int:
        """An integer, both ends included."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def real(self, low: float, high: float) -> float:
        """Uniform."""
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def scale(self, low: float, high: float) -> float:
        """Uniform in the logarithm."""
        return math.exp(self.real(math.log(low), math.log(high)))

    def chance(self, probability: float) -> bool:
        """A biased coin."""
        return float(torch.rand((), generator=self.generator)) < probability

    @contextmanager
    def torch_seeded(self) -> Iterator[None]:
        """Module constructors and `nn.init` read torch's global generator: it is seeded inside and put back."""
        seed = self.whole(0, 2**31 - 1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
