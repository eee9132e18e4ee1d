"""Gauss–Newton on every entry of an update at once, where unknowns are few: series, rows of numbers, small pictures."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import jacfwd

from leakgauge.attacks.matching.parts import Minimiser
from leakgauge.attacks.matching.problem import Best, Minimum, ObjectiveValues, Problem
from leakgauge.errors import Checked, positive
from leakgauge.observation import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors

FALL, RISE, TRIES = 4.0, 3.0, 25
"""By how much the damping falls after a step that leaves less, rises after one that does not, and how often it may."""
FIRST = 1e-3  # first damping, in shares of the largest singular value
SPREAD = 0.3  # of the starts about the middle of the range
LEFT = 1e-6  # share of the update's length below which rounding in float32 leaves


@MINIMISERS.register("gauss-newton", needs="a smooth network, few unknowns, and the length of the update")
@dataclass(frozen=True, kw_only=True)
class GaussNewton(Checked, Minimiser):
    """Levenberg–Marquardt on the update's entries: each step is the damped least squares of their Jacobian.

    What moves the update little (the first steps of a series) is found as well as what moves it much: a misfit's
    gradient has the square of that. The prior and the objective are left out; the data term is the squared share of the
    update's length that is left. A Jacobian costs an evaluation for each unknown.

    Source: Levenberg, 1944; Marquardt, 1963. Known failure: from far away, or behind noise, it ends in a local minimum.
    """

    steps: int = positive(25)
    dtype: ClassVar[torch.dtype | None] = torch.float64

    def minimise(self, problem: Problem) -> Minimum:
        """From one start after the other, drawn towards the middle, until one leaves nothing (`CONVERGED`)."""
        residual = problem.residual
        assert residual is not None
        best, status = Best(1, next(iter(problem.start.values()))), Status.OUT_OF_STEPS
        shapes = {k: v.shape[1:] for k, v in problem.start.items()}
        for index in range(problem.restarts):
            start = {k: v[index] for k, v in problem.start.items()}
            for name, (low, high) in problem.bounds.items():
                start[name] = (low + high) / 2 + SPREAD * (start[name] - (low + high) / 2)
            flat = torch.cat([v.flatten() for v in start.values()])
            flat, left, status = self._from(flat, lambda at: residual(_named(at, shapes)), problem, index)
            term = left.square().sum()[None]
            point = {k: v[None] for k, v in problem.clamp(_named(flat, shapes)).items()}
            best.offer(point, ObjectiveValues(term, term, {}))
            if status is not Status.OUT_OF_STEPS:
                break
        return best.minimum(status)

    def _from(
        self, flat: Tensor, residual: Callable[[Tensor], Tensor], problem: Problem, index: int
    ) -> tuple[Tensor, Tensor, Status]:
        left, damping = residual(flat).detach(), FIRST
        problem.meter.spent += problem.cost
        for step in range(self.steps):
            if (over := problem.meter.over(problem.cost * (len(flat) + 1))) is not None:
                return flat, left, over
            problem.meter.note(index * self.steps + step, float(left.square().sum()))
            slopes = _jacobian(residual, flat)
            u, values, ways = torch.linalg.svd(slopes, full_matrices=False)
            problem.meter.spent += problem.cost * len(flat)
            along = u.T @ left
            for _ in range(TRIES):
                shares = values / (values.square() + (damping * values[0]) ** 2).clamp_min(1e-300)
                near = flat - ways.T @ (shares * along)
                other = residual(near).detach()
                problem.meter.spent += problem.cost
                if other.norm() < left.norm():
                    flat, left, damping = near, other, damping / FALL
                    break
                damping *= RISE
            else:
                break
            if float(left.norm()) < LEFT:
                return flat, left, Status.CONVERGED
        return flat, left, Status.CONVERGED if float(left.norm()) < LEFT else Status.OUT_OF_STEPS


def _jacobian(residual: Callable[[Tensor], Tensor], at: Float[Tensor, " d"]) -> Float[Tensor, "m d"]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of operations that vmap runs one by one
            found: Tensor = jacfwd(residual)(at).detach()
            return found
    except RuntimeError:  # torch.func does not take functions of a user's own
        return torch.stack(
            [torch.autograd.functional.jvp(residual, at, unit)[1] for unit in torch.eye(len(at)).to(at)], 1
        )


def _named(flat: Tensor, shapes: dict[str, torch.Size]) -> Tensors:
    pieces = flat.split([shape.numel() for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
