"""Priors and objectives whose weight changes during a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Prior, Schedule
from leakgauge.errors import require
from leakgauge.registry import PRIORS
from leakgauge.task import DataSpec


@dataclass(frozen=True, kw_only=True)
class StepDecay(Schedule):
    """factor^⌊step / every⌋, whatever the length of the run.

    Source: Qian and Hansen, Algorithm 2: λ is multiplied by 0.9 every m = 2000 iterations.
    """

    factor: float = 0.9
    every: int = 2000

    def __post_init__(self) -> None:
        require(self.factor >= 0, "factor", f"is {self.factor}", "give a number ≥ 0")
        require(self.every > 0, "every", f"is {self.every}", "give a positive number")

    def __call__(self, step: int, steps: int, data: float) -> float:
        del steps, data
        return float(self.factor ** (step // self.every))


@dataclass(frozen=True, kw_only=True)
class Falling(Schedule):
    """From 1 to `to` in `levels` equal ratios of equal length, but never below misfit · √(2·data).

    Levels rather than a slope, because a quasi-Newton method learns the curvature of one function. Of a cosine
    data term, √(2·data) is the distance of the two unit vectors: what noise, rounding or a wrong guess of the
    client's training leaves of it, no image explains, and a weak prior would let the image try.
    """

    to: float
    levels: int = 10
    misfit: float = 0.0

    def __post_init__(self) -> None:
        require(self.to > 0, "to", f"is {self.to}", "give a positive number")
        require(self.levels > 1, "levels", f"is {self.levels}", "give at least 2")
        require(self.misfit >= 0, "misfit", f"is {self.misfit}", "give a number ≥ 0")

    def __call__(self, step: int, steps: int, data: float) -> float:
        level = min(self.levels * step // steps, self.levels - 1)
        planned = float(self.to ** (level / (self.levels - 1)))
        if not self.misfit or not data >= 0:
            return planned
        # Rounded up to a level, for the same reason.
        least = self.misfit * (2 * data) ** 0.5
        held = next((f for f in (self.to ** (i / (self.levels - 1)) for i in range(level, -1, -1)) if f >= least), 1.0)
        return float(held)


@dataclass(frozen=True)
class Scheduled(Prior):
    """`prior`, multiplied by what `schedule` says at each step; as a function of z alone it is `prior`.

    Minimisers tell the problem how far the run is (`Problem.reach`), and the best point is the one that is
    best under the weight in force when the run ends.
    """

    prior: Prior
    schedule: Schedule

    def refuses(self, data: DataSpec) -> str:
        """As the prior does."""
        return self.prior.refuses(data)

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.prior(z)


@PRIORS.register("falling")
def falling(*, prior: Prior, to: float, levels: int = 10, misfit: float = 0.0) -> Scheduled:
    """`prior`, whose weight falls to the fraction `to` over the run, see `Falling`."""
    return Scheduled(prior, Falling(to=to, levels=levels, misfit=misfit))


@PRIORS.register("decaying")
def decaying(*, prior: Prior, factor: float = 0.9, every: int = 2000) -> Scheduled:
    """`prior`, weight times `factor` every so many steps, see `StepDecay`."""
    return Scheduled(prior, StepDecay(factor=factor, every=every))


@dataclass(frozen=True, kw_only=True)
class Proportional(Schedule):
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
