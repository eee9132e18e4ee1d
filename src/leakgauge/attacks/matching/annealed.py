"""Adam with a cosine learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.descent import descend
from leakgauge.attacks.matching.problem import Evaluation, Minimum, Problem
from leakgauge.errors import require
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors


@MINIMISERS.register("annealed-adam")
@dataclass(frozen=True, kw_only=True)
class AnnealedAdam:
    """Unsigned Adam, default betas; the learning rate falls on a half cosine from `lr` to `floor`·`lr`.

    Source: ROG's code: 100 iterations, 0.05 to 0.005; its scheduler first steps after the second iteration, so the
    first two have the full rate. Differs: returns the best point by total objective, not the last; gradients are
    divided by the root mean square of the first one (of each restart), so that Adam's ε of 1e-8 means the same
    for the sum over 34 million entries and for a delta that the local learning rate has made small.

    Where the budget allows fewer than `steps`, the cosine shrinks with it.
    """

    steps: int = 100
    lr: float = 0.05
    floor: float = 0.1

    batched: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype | None] = None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", f"is {self.steps}", "give a positive number")
        require(self.lr > 0, "lr", f"is {self.lr}", "give a positive learning rate")
        require(0 <= self.floor <= 1, "floor", f"is {self.floor}", "give a share of lr in [0, 1]")

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step, counted from 0, of a run of `steps`."""
        turned = (1 + math.cos(math.pi * max(step - 1, 0) / steps)) / 2
        return self.lr * (self.floor + (1 - self.floor) * turned)

    def minimise(self, problem: Problem) -> Minimum:
        """Runs all restarts side by side."""
        units: list[Tensor] = []

        def direction(at: Evaluation) -> Tensors:
            gradient = {k: g.detach() for k, g in at.gradient.items()}
            if not units:
                units.append(root_mean_square(torch.cat([g.flatten(1) for g in gradient.values()], 1)))
            return {k: g / units[0].view(-1, *([1] * (g.ndim - 1))) for k, g in gradient.items()}

        return descend(problem, self.steps, rate=self.rate, direction=direction)


def root_mean_square(flat: Float[Tensor, "restarts n"]) -> Float[Tensor, " restarts"]:
    """By way of the largest entry: squares of small float32 gradients would vanish."""
    largest = flat.abs().amax(1).clamp_min(torch.finfo(flat.dtype).tiny)
    return largest * (flat / largest[:, None]).square().mean(1).sqrt()
