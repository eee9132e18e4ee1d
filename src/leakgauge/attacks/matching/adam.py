"""Adam, on the gradient or on its sign."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakgauge.attacks.matching.descent import descend
from leakgauge.attacks.matching.problem import Evaluation, Minimum, Problem
from leakgauge.errors import require
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors


@MINIMISERS.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with step decay; `signed` replaces the gradient of the total objective by its sign first.

    Source: Inverting Gradients' code: lr 0.1 ×0.1 after 3/8, 5/8 and 7/8 of the steps, default betas,
    clamped to the box after each step. Differs: returns the best point by total objective, not the last.

    Where the budget allows fewer than `steps`, the schedule shrinks with it, so that a short run decays too.
    """

    steps: int = 4800
    lr: float = 0.1
    signed: bool = True
    decay: tuple[float, ...] = (2.667, 1.6, 1.142)

    batched: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype | None] = None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", f"is {self.steps}", "give a positive number")
        require(self.lr > 0, "lr", f"is {self.lr}", "give a positive learning rate")

    def milestones(self, steps: int) -> list[int]:
        """Steps after which the learning rate falls by ten: 1799, 2999, 4203 of 4800.

        Floor division as in the paper's code: 4800 // 1.6 is 2999 in floating point.
        """
        return [int(steps // divisor) for divisor in self.decay]

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step, counted from 0, of a run of `steps`."""
        return self.lr * math.prod(0.1 for milestone in self.milestones(steps) if step >= milestone)

    def minimise(self, problem: Problem) -> Minimum:
        """Runs all restarts side by side."""
        return descend(problem, self.steps, rate=self.rate, direction=self._direction)

    def _direction(self, at: Evaluation) -> Tensors:
        gradient = {k: g.detach() for k, g in at.gradient.items()}
        return {k: g.sign() for k, g in gradient.items()} if self.signed else gradient
