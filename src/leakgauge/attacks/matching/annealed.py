"""Adam with a cosine learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakgauge.attacks.matching.problem import Best, Minimum, Problem
from leakgauge.errors import require
from leakgauge.reconstruction import Status
from leakgauge.registry import MINIMISERS


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
        affordable = problem.affordable()
        steps = self.steps if affordable is None else min(self.steps, affordable)
        point = {k: v.clone() for k, v in problem.clamp(problem.start).items()}
        optimiser = torch.optim.Adam(list(point.values()), lr=self.lr)
        best = Best(problem.restarts, next(iter(point.values())))
        unit: torch.Tensor | None = None
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
            flat = torch.cat([g.detach().flatten(1) for g in at.gradient.values()], 1)
            if unit is None:
                largest = flat.abs().amax(1).clamp_min(torch.finfo(flat.dtype).tiny)
                # By way of the largest: squares of small float32 gradients would vanish.
                unit = largest * (flat / largest[:, None]).square().mean(1).sqrt()
            for name, variable in point.items():
                variable.grad = at.gradient[name].detach() / unit.view(-1, *([1] * (variable.ndim - 1)))
            for group in optimiser.param_groups:
                group["lr"] = self.rate(step, steps)
            optimiser.step()
            for name, (low, high) in problem.bounds.items():
                point[name].clamp_(low, high)
        return best.minimum(Status.OUT_OF_STEPS if steps == self.steps else Status.OUT_OF_BUDGET)
