"""A prior whose weight follows what is still unexplained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakgauge.attacks.matching.priors import Prior
from leakgauge.attacks.matching.schedule import Scheduled
from leakgauge.errors import require
from leakgauge.registry import PRIORS


@dataclass(frozen=True, kw_only=True)
class Proportional:
    """share · data^power, held between `least` and `most`; 1 stands for the data term before the first is known.

    With power 1 a step goes down log(data) + share · prior, which is the same for a network whose images are a cosine
    gap of 1e-3 apart and for one where it is 1e-1; a constant weight suits one of them. With power 2 the prior is
    weak where the data term says much and is at `most` where it is large. What noise leaves unexplained keeps the
    prior in force.
    """

    share: float = 0.3
    power: float = 1.0
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        require(self.share >= 0, "share", f"is {self.share}", "give a number ≥ 0")
        require(self.power > 0, "power", f"is {self.power}", "give a positive number")
        require(0 <= self.least <= self.most, "least", f"is {self.least}", "give a number from 0 to `most`")

    def __call__(self, step: int, steps: int, data: float) -> float:
        del step, steps
        gap = max(data, 0.0) if math.isfinite(data) else 1.0
        return float(max(self.least, min(self.share * gap**self.power, self.most)))


@PRIORS.register("proportional")
def proportional(*, prior: Prior, share: float = 0.3, power: float = 1.0, most: float = math.inf) -> Scheduled:
    """`prior`, weighted by a share of the data term, see `Proportional`; for minimisers of first order."""
    return Scheduled(prior, Proportional(share=share, power=power, most=most))
