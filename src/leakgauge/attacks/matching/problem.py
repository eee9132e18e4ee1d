"""A matching problem as minimisers see it: variables, bounds, values, gradients, and a meter."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad_and_value, vmap

from leakgauge.attacks.matching.parts import Bounds, Schedule
from leakgauge.attacks.matching.priors import Pull
from leakgauge.compute import Budget
from leakgauge.observation import OnStep, Status, Step
from leakgauge.tensors import Tensors

Loss = Callable[[Tensors], tuple[Tensor, Tensor]]
"""Variables of one restart → (total objective, its data term)."""


@dataclass(frozen=True, eq=False)
class ObjectiveValues:
    """Values and gradients of all restarts at one point: total = data + factor · prior."""

    total: Float[Tensor, " restarts"]
    data: Float[Tensor, " restarts"]
    gradient: Tensors
    factor: float = 1.0


class Over(Exception):
    """The meter ended the run inside a step."""

    def __init__(self, status: Status) -> None:
        self.status = status


class Meter:
    """Counts gradient evaluations and decides when a run is over. One per reconstruction."""

    def __init__(self, budget: Budget, on_step: OnStep | None = None) -> None:
        self._budget, self._on_step = budget, on_step
        self._began = time.perf_counter()
        self._stopped = False
        self.spent = 0
        self.trace: list[tuple[int, float]] = []
        self._every = 1
        self._last: Step | None = None

    def affordable(self, cost: int) -> int | None:
        """How many evaluations of that cost the budget still allows; `None` is unlimited."""
        limit = self._budget.gradient_evaluations
        return None if limit is None else max(limit - self.spent, 0) // cost

    def tick(self) -> None:
        """Of work that is no gradient evaluation: raises `Over` where the caller or the clock ends the run."""
        if self._last is not None and self._on_step is not None:
            self._stopped |= bool(self._on_step(replace(self._last, gradient_evaluations=self.spent)))
        if (status := self.over(0)) is not None:
            raise Over(status)

    def over(self, cost: int) -> Status | None:
        """Why another evaluation of that cost must not be made, or `None`."""
        if self._stopped:
            return Status.STOPPED
        if cost and self.affordable(cost) == 0:
            return Status.OUT_OF_BUDGET
        if self._budget.seconds is not None and time.perf_counter() - self._began > self._budget.seconds:
            return Status.TIME_LIMIT
        return None

    def note(self, index: int, objective: float) -> None:
        """Records progress and asks the caller whether to go on. The trace keeps some fifty points, evenly spread."""
        if index % self._every == 0:
            self.trace.append((self.spent, objective))
        if len(self.trace) > 64:
            self.trace, self._every = self.trace[::2], 2 * self._every
        self._last = Step(index, objective, self.spent)
        if self._on_step is not None and self._on_step(self._last):
            self._stopped = True


UNLIMITED = Meter(Budget())  # of work that nobody limits


@dataclass(eq=False)
class Problem:
    """`restarts` copies of one problem side by side."""

    loss: Loss
    start: Tensors  #: first variables, name → ``(restarts, …)``
    bounds: dict[str, Bounds]
    meter: Meter
    cost: int = 1  #: gradient evaluations that one evaluation of one restart takes
    chunk: int | None = None  #: restarts evaluated together; `None` for all.
    ceiling: int | None = None  #: what the meter may show at the end of this problem, its share of a budget
    schedule: Schedule | None = None  #: factor of the prior, the total less the data term; `None` keeps it at 1.
    pull: Pull | None = None  #: a prior beside the loss, which then holds none
    #: of one restart, what its update lacks of the observed one, in shares of that one's length
    residual: Callable[[Tensors], Tensor] | None = None
    factor: float = field(init=False, default=1.0)  #: that of the prior in force, see `reach`
    _misfit: float = field(init=False, default=float("inf"), repr=False)
    _together: bool = field(init=False, default=True, repr=False)

    def _weighted(self, variables: Tensors, factor: Tensor) -> tuple[Tensor, Tensor]:
        """The loss with the prior's factor in force."""
        total, data = self.loss(variables)
        return (total if self.schedule is None else data + factor * (total - data)), data

    def reach(self, step: int, steps: int) -> bool:
        """Minimisers say how far the run is, before they evaluate; whether that changed the prior's factor."""
        before = self.factor
        if self.schedule is not None:
            self.factor = self.schedule(step, steps, self._misfit)
        return self.factor != before

    def skip(self, step: int, steps: int) -> int | None:
        """For minimisers that have converged at `step`: the next step at which the prior has another factor, which is
        then in force; `None` if none comes."""
        return next((later for later in range(step + 1, steps) if self.reach(later, steps)), None)

    @property
    def restarts(self) -> int:
        return len(next(iter(self.start.values())))

    def evaluate(self, point: Tensors) -> ObjectiveValues:
        """Values and gradients at ``(restarts, …)`` variables; counts what it costs."""
        self.meter.spent += self.cost * self.restarts
        total, data, gradient = self.step(point)
        if self.schedule is not None:
            finite = data[torch.isfinite(data)]  # one lost restart must not decide for the others
            self._misfit = float(finite.min()) if len(finite) else self._misfit
        return ObjectiveValues(total, data, gradient, self.factor)

    def step(self, point: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Totals, data terms and gradients at ``(restarts, …)`` variables, not counted; of one restart by autograd,
        which has less overhead than vmap, and of each by itself where they cannot be taken together."""
        like, pull = next(iter(point.values())), self.pull
        factor = torch.as_tensor(self.factor, dtype=like.dtype, device=like.device)

        def both(variables: Tensors, factor: Tensor) -> tuple[Tensors, tuple[Tensor, Tensor]]:
            slopes, values = grad_and_value(self._weighted, has_aux=True)(variables, factor)
            return slopes if pull is None else pull.added(variables, slopes, factor), values

        if len(like) > 1 and self._together:
            try:
                batched = vmap(both, in_dims=(0, None), chunk_size=self.chunk, randomness="same")
                gradient, (total, data) = batched(point, factor)
                return total.detach(), data.detach(), gradient
            except RuntimeError:  # a network that torch.func does not take, or memory
                self._together = False
        each = [self._alone({k: v[i] for k, v in point.items()}, factor) for i in range(len(like))]
        totals, terms, slopes = zip(*each, strict=True)
        return torch.stack(totals), torch.stack(terms), {k: torch.stack([one[k] for one in slopes]) for k in point}

    def _alone(self, variables: Tensors, factor: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        leaves = {k: v.detach().requires_grad_() for k, v in variables.items()}
        total, data = self._weighted(leaves, factor)
        given = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        slopes = dict(zip(leaves, given, strict=True))
        if self.pull is not None:
            slopes = self.pull.added({k: v.detach() for k, v in leaves.items()}, slopes, factor)
        return total.detach(), data.detach(), slopes

    def over(self) -> Status | None:
        """Why another evaluation of all restarts must not be made, or `None`."""
        return self.meter.over(self.cost * self.restarts) or (Status.OUT_OF_BUDGET if self.affordable() == 0 else None)

    def affordable(self) -> int | None:
        """Evaluations of all restarts that the budget still allows."""
        cost = self.cost * self.restarts
        own = None if self.ceiling is None else max(self.ceiling - self.meter.spent, 0) // cost
        left = self.meter.affordable(cost)
        return own if left is None else left if own is None else min(own, left)

    def steps(self, asked: int) -> int:
        """Of a run: as many as asked for, or as the budget affords; one at least."""
        affordable = self.affordable()
        return asked if affordable is None else max(min(asked, affordable), 1)

    def clamp(self, point: Tensors) -> Tensors:
        return {k: v.clamp(*self.bounds[k]) if k in self.bounds else v for k, v in point.items()}

    def one(self, index: int) -> "Problem":
        """The problem of a single restart, for minimisers that cannot run several side by side. What earlier restarts
        left of the budget is shared equally by those still to come."""
        left, ceiling = self.meter.affordable(1), None
        if left is not None:
            ceiling = self.meter.spent + max(left // (self.restarts - index), min(left, self.cost))
        return replace(self, start={k: v[index : index + 1] for k, v in self.start.items()}, ceiling=ceiling)


@dataclass(frozen=True, eq=False)
class Minimum:
    """Best variables of every restart by total objective, and why the run ended."""

    variables: Tensors
    total: Float[Tensor, " restarts"]
    data: Float[Tensor, " restarts"]
    status: Status


class Best:
    """The best point of every restart so far, under the prior's factor in force; not-a-number is never better."""

    def __init__(self, restarts: int, like: Tensor) -> None:
        self.total = torch.full((restarts,), float("inf"), dtype=like.dtype, device=like.device)
        self.data = self.total.clone()
        self.variables: Tensors = {}
        self._factor = 1.0

    def offer(self, point: Tensors, at: ObjectiveValues) -> None:
        if at.factor != self._factor:
            # What was best under another factor is weighed anew; a prior that had no weight has no known value.
            seen = torch.isfinite(self.total)
            ratio = at.factor / self._factor if self._factor else 0.0
            self.total = torch.where(seen, self.data + ratio * (self.total - self.data), self.total)
            self._factor = at.factor
        better, before = at.total < self.total, self.variables or point
        for name, value in point.items():
            mask = better.view(-1, *([1] * (value.ndim - 1)))
            self.variables[name] = torch.where(mask, value, before[name])
        self.total = torch.where(better, at.total, self.total)
        self.data = torch.where(better, at.data, self.data)

    def minimum(self, status: Status) -> Minimum:
        """What was found; `NON_FINITE` when points were tried and none had a finite value."""
        if self.variables and not bool(torch.isfinite(self.total).any()):
            status = Status.NON_FINITE
        return Minimum(self.variables, self.total, self.data, status)
