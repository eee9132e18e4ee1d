"""Minimisers that go by curvature: L-BFGS with a fixed step, all restarts side by side, and within bounds, by SciPy;
Gauss–Newton on every entry of an update at once, where unknowns are few."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor
from torch.func import jacfwd

from leakgauge.attacks.matching.parts import Minimiser
from leakgauge.attacks.matching.problem import Best, Minimum, ObjectiveValues, Over, Problem
from leakgauge.errors import Checked, positive
from leakgauge.observation import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors, map_tensors


@MINIMISERS.register("lbfgs", needs="a smooth network, and restarts: without a line search many diverge")
@dataclass(frozen=True, kw_only=True)
class LBFGS(Checked, Minimiser):
    """The iterates of ``torch.optim.LBFGS`` without line search, for all restarts in one vmap.

    Source: DLG's code runs 300 calls of torch's optimiser, 20 iterations each, at its defaults. Differs:
    torch evaluates the same point twice between calls, we do not; a restart that turns not-a-number or
    converges is frozen and the others go on; a restart whose first gradient has no entry of size 1 runs on its
    objective divided by the largest entry, as torch's absolute tolerances would end a small objective at its start.
    Bounds are not respected: the recipe has none.

    Attributes:
        steps: iterations (DLG: 300 × 20).
        lr: step length; the very first step is shortened to lr·min(1, 1/‖g‖₁).
        tolerance: ends a restart when its largest gradient entry falls below it, in units of the first gradient's
            largest entry where that is below 1.
        change: ends a restart when its step, or its decrease in the same units, falls below it.
    """

    steps: int = positive(6000)
    lr: float = 1.0
    history: int = positive(100)
    tolerance: float = 1e-7
    change: float = 1e-9

    def minimise(self, problem: Problem) -> Minimum:
        point = {k: v.clone() for k, v in problem.start.items()}
        best = Best(problem.restarts, next(iter(point.values())))
        pairs = _Pairs(self.history)
        alive = torch.ones_like(best.total, dtype=torch.bool)
        before: Float[Tensor, "restarts d"] | None = None
        loss_before: Tensor | None = None
        step: Tensor | None = None
        unit: Float[Tensor, " restarts"] | None = None
        steps = problem.steps(self.steps)
        ahead = 0  # of the evaluations, where all have converged before the prior had fallen
        for index in range(self.steps):
            if (over := problem.over()) is not None:
                return best.minimum(over)
            problem.reach(index + ahead, steps)
            at = problem.evaluate(point)
            best.offer(point, at)
            problem.meter.note(index, float(best.data.min()))
            slope = _flat(at.gradient)
            unit = _unit(slope) if unit is None else unit
            slope, loss = slope / unit[:, None], at.total / unit
            alive = alive & self._goes_on(loss, slope, step, loss_before)
            if not bool(alive.any()):
                later = problem.skip(index + ahead, steps)
                alive = torch.isfinite(at.total)
                if later is None or not bool(alive.any()):
                    return best.minimum(Status.CONVERGED)
                ahead, pairs, before, step = later - index - 1, _Pairs(self.history), None, None
                continue
            length = torch.full_like(at.total, self.lr)
            if before is None:
                length = self.lr * (1 / slope.abs().sum(1)).clamp_max(1.0)
            elif step is not None:
                pairs.add(step, slope - before)
            step = torch.where(alive[:, None], length[:, None] * pairs.direction(slope), 0.0)
            before, loss_before = slope, loss
            point = map_tensors(torch.add, point, _named(step, point))
        return best.minimum(problem.over() or Status.OUT_OF_STEPS)

    def _goes_on(self, loss: Tensor, slope: Tensor, step: Tensor | None, loss_before: Tensor | None) -> Tensor:
        goes = torch.isfinite(loss) & torch.isfinite(slope).all(1) & (slope.abs().amax(1) > self.tolerance)
        if step is not None and loss_before is not None:
            goes &= (step.abs().amax(1) > self.change) & ((loss - loss_before).abs() >= self.change)
        return goes


class _Pairs:
    """Steps and gradient changes, and the two-loop recursion over them, per restart."""

    def __init__(self, history: int) -> None:
        self._kept: deque[tuple[Tensor, Tensor, Tensor]] = deque(maxlen=history)
        self._scale: Tensor | None = None

    def add(self, s: Float[Tensor, "restarts d"], y: Float[Tensor, "restarts d"]) -> None:
        """Keeps a pair where its curvature is positive; elsewhere it has no effect (ρ = 0)."""
        sy, yy = (s * y).sum(1), (y * y).sum(1)
        good, one = sy > 1e-10, torch.ones_like(sy)
        rho = torch.where(good, 1 / torch.where(good, sy, one), 0.0)
        before = one if self._scale is None else self._scale
        self._scale = torch.where(good, sy / torch.where(good, yy, one), before)
        self._kept.append((s, y, rho))

    def direction(self, slope: Float[Tensor, "restarts d"]) -> Float[Tensor, "restarts d"]:
        """−H·slope."""
        q, alphas = -slope, []
        for s, y, rho in reversed(self._kept):
            alphas.append((s * q).sum(1) * rho)
            q = q - alphas[-1][:, None] * y
        if self._scale is not None:
            q = q * self._scale[:, None]
        for (s, y, rho), alpha in zip(self._kept, reversed(alphas), strict=True):
            beta = (y * q).sum(1) * rho
            q = q + (alpha - beta)[:, None] * s
        return q


def _unit(slope: Float[Tensor, "restarts d"]) -> Float[Tensor, " restarts"]:
    """What a restart's objective is divided by: its first gradient's largest entry, if that is in (0, 1)."""
    largest = slope.abs().amax(1)
    return torch.where((largest > 0) & (largest < 1), largest, torch.ones_like(largest))


def _named(flat: Float[Tensor, "restarts d"], like: Tensors) -> Tensors:
    """`_flat` back."""
    pieces = flat.split([v[0].numel() for v in like.values()], dim=1)
    return {name: piece.view(len(flat), *v.shape[1:]) for (name, v), piece in zip(like.items(), pieces, strict=True)}


def _flat(tree: Tensors) -> Float[Tensor, "restarts d"]:
    return torch.cat([v.detach().flatten(1) for v in tree.values()], 1)


def _numbers(tree: Tensors) -> np.ndarray:
    return _flat(tree)[0].double().cpu().numpy()


@MINIMISERS.register("bounded-lbfgs", needs="a smooth network; its line search gives up on ReLU ones")
@dataclass(frozen=True, kw_only=True)
class BoundedLBFGS(Checked, Minimiser):
    """L-BFGS-B (Byrd, Lu, Nocedal and Zhu, 1995) in float64.

    SciPy's line search cannot be vmapped: restarts run one by one.

    Attributes:
        steps: most evaluations of one restart.
        scale: multiplies the objective, so that the first step and the stopping rules suit a cosine gap of 1e-5. One
            that this leaves below 1 at the start is multiplied by what makes it 1: SciPy's tolerance is absolute below.
        tolerance: ends the run when the relative decrease of the objective falls below it.
    """

    steps: int = positive(1000)
    history: int = 100
    scale: float = 1e3
    tolerance: float = 1e-9

    batched: ClassVar[bool] = False
    dtype: ClassVar[torch.dtype | None] = torch.float64

    def minimise(self, problem: Problem) -> Minimum:
        start = problem.clamp(problem.start)
        best = Best(1, next(iter(start.values())))
        evaluations, scale, steps = 0, self.scale, problem.steps(self.steps)
        ahead = 0  # of the evaluations, where it has converged before the prior had fallen
        problem.reach(0, steps)

        def iterated(_: np.ndarray) -> None:
            # Between iterations only. The search that follows a fall of the prior still starts from the value before
            # it, which SciPy keeps; starting anew would lose the curvature.
            problem.reach(evaluations + ahead, steps)

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal evaluations, scale
            if (over := problem.over()) is not None:
                raise Over(over)
            if evaluations == self.steps:
                raise Over(Status.OUT_OF_STEPS)
            point = map_tensors(torch.Tensor.to, _named(torch.from_numpy(flat.copy())[None], start), start)
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
            return scale * total, scale * _numbers({k: at.gradient[k] for k in start})

        free = (torch.tensor(-torch.inf), torch.tensor(torch.inf))
        ends = [{k: problem.bounds.get(k, free)[i].to(v).expand_as(v) for k, v in start.items()} for i in (0, 1)]
        search = partial(
            minimize,
            value_and_gradient,
            jac=True,
            method="L-BFGS-B",
            bounds=np.stack([_numbers(end) for end in ends], axis=1),
            options={"maxcor": self.history, "maxiter": self.steps, "maxfun": self.steps}
            | {"ftol": self.tolerance, "gtol": 0.0},
            callback=iterated,
        )
        flat = _numbers(start)
        try:
            while True:
                flat = search(flat).x
                if (later := problem.skip(evaluations + ahead, steps)) is None:
                    return best.minimum(Status.CONVERGED)
                ahead = later - evaluations
        except Over as over:
            return best.minimum(over.status)


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
        start = dict(problem.start)
        for name, (low, high) in problem.bounds.items():
            start[name] = (low + high) / 2 + SPREAD * (start[name] - (low + high) / 2)

        def lacks(flat: Tensor) -> Tensor:
            return residual({k: v[0] for k, v in _named(flat[None], start).items()})

        for index, first in enumerate(_flat(start)):
            flat, left, status = self._from(first, lacks, problem, index)
            term = left.square().sum()[None]
            best.offer(problem.clamp(_named(flat[None], start)), ObjectiveValues(term, term, {}))
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
        units = torch.eye(len(at)).to(at)
        return torch.stack([torch.autograd.functional.jvp(residual, at, unit)[1] for unit in units], 1)
