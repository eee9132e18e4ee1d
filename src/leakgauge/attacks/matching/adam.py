"""Adam, on the gradient or on its sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leakgauge.attacks.matching.problem import Best, Minimum, Problem
from leakgauge.errors import require
from leakgauge.reconstruction import Status
from leakgauge.registry import MINIMISERS


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

    def minimise(self, problem: Problem) -> Minimum:
        """Runs all restarts side by side."""
        affordable = problem.affordable()
        steps = self.steps if affordable is None else min(self.steps, affordable)
        point = {k: v.clone() for k, v in problem.clamp(problem.start).items()}
        optimiser = torch.optim.Adam(list(point.values()), lr=self.lr)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, self.milestones(steps))
        best = Best(problem.restarts, next(iter(point.values())))
        for step in range(steps):
            over = problem.over()
            if over is not None:
                return best.minimum(over)
            problem.reach(step, steps)
            at = problem.evaluate(point)
            best.offer(point, at)
            problem.meter.note(step, float(best.data.min()))
            if not bool(torch.isfinite(at.total).any()):
                break  # no restart comes back from not-a-number
            for name, variable in point.items():
                gradient = at.gradient[name].detach()
                variable.grad = gradient.sign() if self.signed else gradient
            optimiser.step()
            schedule.step()
            for name, (low, high) in problem.bounds.items():
                point[name].clamp_(low, high)
        return best.minimum(Status.OUT_OF_STEPS if steps == self.steps else Status.OUT_OF_BUDGET)
