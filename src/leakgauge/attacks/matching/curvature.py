"""Minimisers that go by curvature: L-BFGS with a fixed step, by torch, and within bounds, by SciPy; Gauss–Newton on
every entry of an update at once, where unknowns are few."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
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
    """``torch.optim.LBFGS`` without line search; restarts run one by one.

    Source: DLG's code runs 300 calls of torch's optimiser, 20 iterations each, at its defaults. Differs: it is one
    call, which evaluates no point twice; a run that turns not-a-number ends at its best point; one whose first gradient
    has no entry of size 1 runs on its objective divided by the largest entry, as torch's absolute tolerances would end
    a small objective at its start. Bounds are not respected: the recipe has none.

    Attributes:
        steps: iterations (DLG: 300 × 20).
        lr: step length; the very first step is shortened to lr·min(1, 1/‖g‖₁).
        tolerance: ends a run when its largest gradient entry falls below it, in units of the first gradient's largest
            entry where that is below 1.
        change: ends a run when its step, or its decrease in the same units, falls below it.
    """

    steps: int = positive(6000)
    lr: float = 1.0
    history: int = positive(100)
    tolerance: float = 1e-7
    change: float = 1e-9

    batched: ClassVar[bool] = False

    def minimise(self, problem: Problem) -> Minimum:
        leaves = {k: v.clone(memory_format=torch.contiguous_format).requires_grad_() for k, v in problem.start.items()}
        run, unit = _Evaluations(problem, self.steps), 0.0

        def closure() -> Tensor:
            nonlocal unit
            run.reach()
            at = run.at({k: v.detach() for k, v in leaves.items()})
            largest = max(float(slope.abs().max()) for slope in at.gradient.values())
            unit = unit or (largest if 0 < largest < 1 else 1.0)
            for name, leaf in leaves.items():
                leaf.grad = (at.gradient[name] / unit).contiguous()  # torch's own views it as one row
            return at.total / unit

        given = [*leaves.values()], self.lr, self.steps + 1, None, self.tolerance, self.change, self.history
        return run.minimum(lambda: torch.optim.LBFGS(*given).step(closure))


class _Evaluations:
    """Evaluations of one restart, as long as steps and budget last, and the best of them."""

    def __init__(self, problem: Problem, asked: int) -> None:
        self.problem, self.asked, self.steps = problem, asked, problem.steps(asked)
        self.best = Best(1, next(iter(problem.start.values())))
        self.done = 0
        self.ahead = 0  # of the evaluations, where it has converged before the prior had fallen

    def reach(self) -> None:
        self.problem.reach(self.done + self.ahead, self.steps)

    def at(self, point: Tensors) -> ObjectiveValues:
        if (over := self.problem.over()) is not None:
            raise Over(over)
        if self.done == self.asked:
            raise Over(Status.OUT_OF_STEPS)
        at = self.problem.evaluate(point)
        self.best.offer(point, at)
        self.problem.meter.note(self.done, float(self.best.data))
        self.done += 1
        if not bool(torch.isfinite(at.total)):
            # The line search has left the domain: keep the best point, if there was one.
            raise Over(Status.CONVERGED if bool(torch.isfinite(self.best.total)) else Status.NON_FINITE)
        return at

    def minimum(self, search: Callable[[], object]) -> Minimum:
        """After as many searches, each to its end, as the prior has factors."""
        try:
            while True:
                search()
                if (later := self.problem.skip(self.done + self.ahead, self.steps)) is None:
                    return self.best.minimum(Status.CONVERGED)
                self.ahead = later - self.done
        except Over as over:
            return self.best.minimum(over.status)


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
        start, run, scale = problem.clamp(problem.start), _Evaluations(problem, self.steps), self.scale
        run.reach()

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal scale
            at = run.at(map_tensors(torch.Tensor.to, _named(torch.from_numpy(flat.copy())[None], start), start))
            total = float(at.total)
            if run.done == 1 and total != 0:
                scale = max(scale, 1 / abs(total))
            return scale * total, scale * _numbers({k: at.gradient[k] for k in start})

        free = (torch.tensor(-torch.inf), torch.tensor(torch.inf))
        ends = [{k: problem.bounds.get(k, free)[i].to(v).expand_as(v) for k, v in start.items()} for i in (0, 1)]
        flat = _numbers(start)

        def search() -> None:
            nonlocal flat
            flat = minimize(
                value_and_gradient,
                flat,
                jac=True,
                method="L-BFGS-B",
                bounds=np.stack([_numbers(end) for end in ends], axis=1),
                options={"maxcor": self.history, "maxiter": self.steps, "maxfun": self.steps}
                | {"ftol": self.tolerance, "gtol": 0.0},
                # The prior falls between iterations only. The search that follows still starts from the value before,
                # which SciPy keeps; starting anew would lose the curvature.
                callback=lambda _: run.reach(),
            ).x

        return run.minimum(search)


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
        middles = {k: (low + high) / 2 for k, (low, high) in problem.bounds.items()}
        start = problem.start | {k: middle + SPREAD * (problem.start[k] - middle) for k, middle in middles.items()}

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
