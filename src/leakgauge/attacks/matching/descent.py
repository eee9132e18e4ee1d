"""First-order descent of all restarts side by side: what Adam and its annealed form share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from leakgauge.attacks.matching.problem import Best, Evaluation, Minimum, Problem
from leakgauge.reconstruction import Status
from leakgauge.tensors import Tensors


def descend(
    problem: Problem,
    asked: int,
    *,
    rate: Callable[[int, int], float],
    direction: Callable[[Evaluation], Tensors],
) -> Minimum:
    """Adam on what `direction` makes of a gradient, clamped to the box after each step.

    Args:
        asked: steps; where the budget affords fewer, as many as it affords.
        rate: (step, counted from 0; steps of this run) → learning rate.
        direction: one tensor a variable, shaped as it.

    Returns:
        The best point by total objective, not the last. A restart that is not finite is left behind; where none is
        finite the run ends.
    """
    affordable = problem.affordable()
    steps = asked if affordable is None else min(asked, affordable)
    point = {k: v.clone() for k, v in problem.clamp(problem.start).items()}
    optimiser = torch.optim.Adam(list(point.values()))
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
            return best.minimum(Status.CONVERGED)  # no restart comes back from not-a-number
        for name, towards in direction(at).items():
            point[name].grad = towards
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps)
        optimiser.step()
        for name, (low, high) in problem.bounds.items():
            point[name].clamp_(low, high)
    return best.minimum(Status.OUT_OF_STEPS if steps == asked else Status.OUT_OF_BUDGET)
