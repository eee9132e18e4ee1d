"""What one reconstruction may draw from and spend, handed on from method to method."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.compute import Budget, Compute
from leakgauge.observation import Attack, Cost, Observation, OnStep, Reconstruction, Status, Step


@dataclass(frozen=True, eq=False)
class Effort:
    """The arguments of `Attack.reconstruct` beside the observation, and when it began."""

    generator: torch.Generator
    budget: Budget = Budget()
    compute: Compute = Compute()
    on_step: OnStep | None = None
    began: float = field(default_factory=time.perf_counter)

    def of(self, attack: Attack, observation: Observation) -> Reconstruction:
        return attack.reconstruct(
            observation, self.generator, budget=self.budget, compute=self.compute, on_step=self.on_step
        )

    def left(
        self, spent: int, evaluations: int | None = None, *, share: float = 1.0, reserve: int = 0
    ) -> "Effort | Status":
        """What the next method may have after `spent` gradient evaluations, or the status that ends the run: at most so
        many `evaluations`, and a `share` of what is left, seconds too, less a `reserve` of evaluations to keep."""
        limit, seconds = self.budget.gradient_evaluations, self.budget.seconds
        if limit is not None:
            room = max(int(share * max(limit - spent, 0)) - reserve, 0)
            evaluations = room if evaluations is None else min(evaluations, room)
        if evaluations is not None and evaluations < 1:
            return Status.OUT_OF_BUDGET
        if seconds is not None:
            seconds = share * (seconds - (time.perf_counter() - self.began))
            if seconds <= 0:
                return Status.TIME_LIMIT
        return replace(self, budget=Budget(evaluations, seconds), on_step=self._after(spent), began=time.perf_counter())

    def _after(self, spent: int) -> OnStep | None:
        asked = self.on_step
        if asked is None or not spent:
            return asked
        return lambda step: asked(Step(step.index, step.objective, spent + step.gradient_evaluations))


class SearchingAttack(ABC):
    """An attack that spends: what it is given comes as one `Effort`."""

    @abstractmethod
    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """The best found within the effort."""

    def resumed(self, inputs: Float[Tensor, "n *shape"]) -> "SearchingAttack":
        """The same attack from these raw examples that it, or another, found; itself where it takes no start."""
        return self

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """The best found within the budget, whenever it ends, with the time that it took."""
        effort = Effort(generator, budget, compute, on_step)
        found = self.run(observation, effort)
        return replace(found, cost=Cost(found.cost.gradient_evaluations, time.perf_counter() - effort.began))


class ReadingAttack(SearchingAttack):
    """An attack that only looks: it searches nothing, so that budget, compute and steps do not concern it."""

    @abstractmethod
    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """What it reads in the update."""

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        return self.read(observation, effort.generator).with_view(observation)
