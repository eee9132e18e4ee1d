"""Bounded limited-memory BFGS with a strong-Wolfe line search, by SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from scipy.optimize import minimize

from leakgauge.attacks.matching.parts import Minimiser
from leakgauge.attacks.matching.problem import Best, Minimum, Over, Problem
from leakgauge.errors import require
from leakgauge.observation import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors


@MINIMISERS.register("bounded-lbfgs", needs="a smooth network; its line search gives up on ReLU ones")
@dataclass(frozen=True, kw_only=True)
class BoundedLBFGS(Minimiser):
    """L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995) in float64.

    SciPy's line search cannot be vmapped: restarts run one by one.

    Attributes:
        steps: most evaluations of one restart.
        history: pairs kept.
        scale: multiplies the objective, so that the first step and the stopping rules suit a cosine gap of 1e-5. An
            objective that this leaves below 1 at the start is multiplied by what makes it 1 there: SciPy's
            tolerance is absolute below 1.
        tolerance: ends the run when the relative decrease of the objective falls below it.
    """

    steps: int = 1000
    history: int = 100
    scale: float = 1e3
    tolerance: float = 1e-9

    batched: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype | None] = torch.float64

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", f"is {self.steps}", "give a positive number")

    def minimise(self, problem: Problem) -> Minimum:
        """Runs the one restart of `problem`."""
        start = problem.clamp(problem.start)
        best = Best(1, next(iter(start.values())))
        evaluations, scale = 0, self.scale
        affordable = problem.affordable()
        steps = self.steps if affordable is None else max(min(self.steps, affordable), 1)
        ahead = 0  # of the evaluations, where it has converged before the prior had fallen
        problem.reach(0, steps)

        def iterated(_: np.ndarray) -> None:
            # Between iterations only. The search that follows a fall of the prior still starts from the value before
            # it, which SciPy keeps; starting anew would lose the curvature.
            problem.reach(evaluations + ahead, steps)

        def unflatten(flat: np.ndarray) -> Tensors:
            pieces = torch.from_numpy(flat).split([v.numel() for v in start.values()])
            return {k: p.view(v.shape).to(v) for (k, v), p in zip(start.items(), pieces, strict=True)}

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal evaluations, scale
            over = problem.over()
            if over is not None:
                raise Over(over)
            if evaluations == self.steps:
                raise Over(Status.OUT_OF_STEPS)
            point = unflatten(np.array(flat))
            at = problem.evaluate(point)
            best.offer(point, at)
            problem.meter.note(evaluations, float(best.data))
            evaluations += 1
            if not bool(torch.isfinite(at.total)):
                # The line search has left the domain: keep the best point, if there was one.
                raise Over(Status.CONVERGED if bool(torch.isfinite(best.total)) else Status.NON_FINITE)
            total = float(at.total)
            if evaluations == 1 and total != 0:
                scale = max(scale, 1 / abs(total))
            slope = torch.cat([at.gradient[k].detach().flatten() for k in start]).double().cpu().numpy()
            return scale * total, scale * slope

        flat = torch.cat([v.flatten() for v in start.values()]).double().cpu().numpy()
        lower, upper = np.full(flat.shape, -np.inf), np.full(flat.shape, np.inf)
        offset = 0
        for name, value in start.items():
            if name in problem.bounds:
                low, high = problem.bounds[name]
                lower[offset : offset + value.numel()] = low.expand_as(value[0]).flatten().double().cpu().numpy()
                upper[offset : offset + value.numel()] = high.expand_as(value[0]).flatten().double().cpu().numpy()
            offset += value.numel()
        options = {
            "maxcor": self.history,
            "maxiter": self.steps,
            "maxfun": self.steps,
            "ftol": self.tolerance,
            "gtol": 0.0,
        }
        try:
            bounds = np.stack([lower, upper], axis=1)
            while True:
                flat = minimize(
                    value_and_gradient,
                    flat,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options=options,
                    callback=iterated,
                ).x
                later = problem.skip(evaluations + ahead, steps)
                if later is None:
                    break
                ahead = later - evaluations
        except Over as over:
            return best.minimum(over.status)
        return best.minimum(Status.CONVERGED)
