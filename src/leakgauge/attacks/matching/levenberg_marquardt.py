"""Levenberg–Marquardt with matrix-free products, inside a box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.matching.parts import Minimiser
from leakgauge.attacks.matching.problem import Best, Evaluation, Minimum, Over, Problem
from leakgauge.attacks.matching.residuals import Linearisation
from leakgauge.errors import InputError, require
from leakgauge.observation import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors


@MINIMISERS.register(
    "levenberg-marquardt", needs="a smooth network, and an objective that is a sum of squares (l2, cosine)"
)
@dataclass(frozen=True, kw_only=True)
class LevenbergMarquardt(Minimiser):
    """Minimises ‖r‖² + P by steps δ from (2JᵀJ + ∇²P + λI) δ = −(2Jᵀr + ∇P), truncated conjugate gradients.

    J is never formed: conjugate gradients take one Jv and one Jᵀu a round. Variables at a bound that the
    gradient presses against it are left out of the system; the step is clamped to the box; λ follows the ratio
    of the decrease to that of the model ‖r + Jδ‖² + P(x + δ) for the clamped step (Nielsen's rule).
    P must be convex, or the step ends at the first direction of negative curvature. Restarts run one by one.

    Cost: a trial point, each Jv and each Jᵀu is one gradient evaluation (`Linearisation`), so a step of k
    rounds takes 2k + 3, one more where the box clamped it.

    Attributes:
        steps: most trial points of one restart.
        rounds: most rounds of conjugate gradients a step.
        forcing: rounds end when the system's residual has fallen to this fraction of the gradient.
        damping: first λ, as a fraction of the curvature along the gradient.
        tolerance: ends the run when a step's relative decrease falls below it.
    """

    steps: int = 1000
    rounds: int = 40
    forcing: float = 0.05
    damping: float = 1e-2
    tolerance: float = 1e-12

    batched: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype | None] = torch.float64
    needs_squares: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("steps", "rounds"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        for name in ("forcing", "damping"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")

    def minimise(self, problem: Problem) -> Minimum:
        """Runs the one restart of `problem`.

        Raises:
            InputError: the loss is not given as a sum of squares.
        """
        if problem.squares is None:
            raise InputError("minimiser", "the loss is not known as a sum of squares", "use l2 or cosine")
        best = Best(1, next(iter(problem.start.values())))
        try:
            status = self._run(problem, best)
        except Over as over:
            status = over.status
        return best.minimum(status)

    def _run(self, problem: Problem, best: Best) -> Status:
        box = _Box(problem)
        point = box.flat(problem.clamp(problem.start))
        length = problem.affordable()
        began = problem.meter.spent

        def visit(flat: Tensor, index: int) -> tuple[Linearisation, float]:
            at = problem.linearise(box.tree(flat))
            total = at.data + problem.factor * at.prior
            if bool(torch.isfinite(total)) or not best.variables:
                best.offer(box.tree(flat), Evaluation(total[None], at.data[None], {}, problem.factor))
            problem.meter.note(index, float(best.data))
            return at, float(total)

        ahead = 0  # where it has converged before the prior had fallen

        def at_step(index: int) -> tuple[int, int]:
            spent = (problem.meter.spent - began) // problem.cost
            step, steps = (index, self.steps) if length is None else (spent, max(length, 1))
            return max(step, ahead), steps

        def pace(index: int) -> None:
            problem.reach(*at_step(index))

        def goes_on(index: int) -> bool:
            nonlocal ahead
            later = problem.skip(*at_step(index))
            ahead = ahead if later is None else later
            return later is not None

        pace(0)
        at, total = visit(point, 0)
        if not torch.isfinite(torch.tensor(total)):
            return Status.NON_FINITE
        damping, growth, slope = 0.0, 2.0, None
        for index in range(1, self.steps):
            if slope is None:
                pace(index)
                total = float(at.data + problem.factor * at.prior)
                slope = 2 * at.transposed(at.residual) + problem.factor * at.prior_slope()
            free = box.free(point, slope)
            if not bool((slope * free).any()):
                if not goes_on(index):
                    return Status.CONVERGED
                slope = None
                continue
            model = _Model(at, slope * free, free, problem.factor)
            damping = damping or self.damping * model.curvature_along_slope()
            step, pushed = model.step(damping, self.rounds, self.forcing)
            trial = box.clamp(point + step)
            if not torch.equal(trial, point + step):
                pushed = at.product(trial - point)
            tried, value = visit(trial, index)
            predicted = total - float((at.residual + pushed).square().sum() + problem.factor * tried.prior)
            ratio = (total - value) / predicted if predicted > 0 else -1.0
            if ratio > 1e-4:  # also false for not-a-number
                small = total - value <= self.tolerance * abs(total)
                point, at, total, slope = trial, tried, value, None
                damping, growth = damping * max(1 / 5, 1 - (2 * min(ratio, 1.0) - 1) ** 3), 2.0
                if small and not goes_on(index):
                    return Status.CONVERGED
            else:
                damping, growth = damping * growth, 2 * growth
                if float((trial - point).abs().max()) < 1e-12:
                    if not goes_on(index):
                        return Status.CONVERGED
                    damping, growth, slope = 0.0, 2.0, None
        return Status.OUT_OF_STEPS


class _Model:
    """q(δ) = ‖r + Jδ‖² + P + ∇Pᵀδ + ½δᵀ∇²Pδ over the free variables."""

    def __init__(self, at: Linearisation, slope: Float[Tensor, " d"], free: Bool[Tensor, " d"], factor: float) -> None:
        self._at, self._slope, self._free, self._factor = at, slope, free, factor

    def _curved(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """(2JᵀJ + ∇²P)·v on the free variables, and Jv."""
        pushed = self._at.product(v)
        curved = 2 * self._at.transposed(pushed) + self._factor * self._at.prior_curvature(v)
        return curved * self._free, pushed

    def curvature_along_slope(self) -> float:
        """gᵀBg / gᵀg, at least tiny; one round's cost."""
        unit = self._slope / self._slope.norm()
        return max(float(unit @ self._curved(unit)[0]), torch.finfo(unit.dtype).tiny)

    def step(self, damping: float, rounds: int, forcing: float) -> tuple[Float[Tensor, " d"], Float[Tensor, " m"]]:
        """δ by conjugate gradients from zero, and Jδ."""
        step, pushed = torch.zeros_like(self._slope), torch.zeros_like(self._at.residual)
        rest = -self._slope
        direction, norm = rest, rest @ rest
        goal = forcing**2 * norm
        for _ in range(rounds):
            curved, along = self._curved(direction)
            curved = curved + damping * direction
            curvature = direction @ curved
            if not float(curvature) > 0:
                # Negative curvature: steepest descent if nothing is found yet, else what there is.
                return (step, pushed) if bool(step.any()) else (direction, along)
            length = norm / curvature
            step, pushed = step + length * direction, pushed + length * along
            rest = rest - length * curved
            before, norm = norm, rest @ rest
            if float(norm) <= float(goal):
                break
            direction = rest + norm / before * direction
        return step, pushed


class _Box:
    """Variables as one vector, and their bounds."""

    def __init__(self, problem: Problem) -> None:
        self._shapes = {k: v.shape for k, v in problem.start.items()}
        sides: list[list[Tensor]] = [[], []]
        for name, value in problem.start.items():
            endless = torch.full_like(value[0], torch.inf)
            bounds = problem.bounds.get(name, (-endless, endless))
            for side, bound in zip(sides, bounds, strict=True):
                side.append(bound.expand_as(value[0]).to(value).flatten())
        self.low, self.high = (torch.cat(side) for side in sides)

    def flat(self, tree: Tensors) -> Float[Tensor, " d"]:
        return torch.cat([v[0].detach().flatten() for v in tree.values()])

    def tree(self, flat: Float[Tensor, " d"]) -> Tensors:
        pieces = flat.split([shape[1:].numel() for shape in self._shapes.values()])
        return {k: p.view(shape) for (k, shape), p in zip(self._shapes.items(), pieces, strict=True)}

    def clamp(self, flat: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(flat, self.low), self.high)

    def free(self, flat: Tensor, slope: Tensor) -> Bool[Tensor, " d"]:
        """Variables that are not pressed against a bound."""
        return ~(((flat <= self.low) & (slope > 0)) | ((flat >= self.high) & (slope < 0)))
