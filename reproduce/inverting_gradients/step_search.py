"""An attack for clients whose number of local epochs is not known: each candidate is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from leakgauge.clients import FedAvg, LocalTraining
from leakgauge.compute import Budget, Compute
from leakgauge.errors import FOREIGN, require, said
from leakgauge.observation import Attack, Cost, Observation, OnStep, Reconstruction, Status, Step
from leakgauge.update import UpdateKind


@dataclass(frozen=True, kw_only=True)
class StepSearch:
    """`attack` for every candidate of local training; the lowest data term is the answer.

    All candidates start alike, and a budget is shared in proportion to what a step of each costs, so that objectives
    are compared after equal numbers of steps. Where local training is known, or a gradient is sent, it is `attack`.

    Source: ours. Inverting Gradients assumes that the number of local steps and the learning rate are known.
    A local learning rate at which the update is still nearly the first gradient makes candidates alike:
    then the choice is arbitrary and does not matter. A cosine sees little more than the product epochs · lr;
    `l2` also sees the length of the update.

    Attributes:
        attack: with an objective that means the same for every candidate (cosine or l2, no closed form).
        epochs: candidates.
        client: all else of the local training, as known or assumed.
        rates: candidate learning rates; empty for that of `client`.
    """

    attack: Attack
    epochs: tuple[int, ...] = (1, 2, 4, 8)
    client: LocalTraining = field(default_factory=FedAvg)
    rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.epochs), "epochs", "is empty", "give at least one candidate")
        require(all(e > 0 for e in self.epochs), "epochs", f"are {self.epochs}", "give positive numbers")
        require(all(r > 0 for r in self.rates), "rates", f"are {self.rates}", "give positive learning rates")
        require(isinstance(self.client, LocalTraining), "client", f"is {type(self.client).__name__}", "give fedavg")

    @property
    def candidates(self) -> tuple[LocalTraining, ...]:
        """Every number of epochs with every learning rate."""
        rates = self.rates or (self.client.optimiser.lr,)
        return tuple(
            replace(self.client, epochs=epochs, optimiser=self.client.optimiser.with_rate(rate))
            for epochs in self.epochs
            for rate in rates
        )

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """The best candidate's answer; its message names the candidate. Costs and trace are of the whole search."""
        knowledge = observation.knowledge
        if knowledge.local_training is not None or observation.update.header.kind is not UpdateKind.DELTA:
            return self.attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
        seed = int(torch.randint(2**31, (), generator=generator))
        tries: list[tuple[LocalTraining, Reconstruction]] = []
        spent, seconds = 0, 0.0
        for candidate, share in self._shares(observation, budget):
            allowed = share(spent, seconds)
            if allowed is None:
                continue
            told = replace(observation, knowledge=replace(knowledge, local_training=candidate))
            draws = torch.Generator().manual_seed(seed)
            try:
                found = self.attack.reconstruct(
                    told, draws, budget=allowed, compute=compute, on_step=_from(spent, on_step)
                )
            except FOREIGN as error:  # the next candidate may run
                found = Reconstruction(None, None, Status.FAILED, said(error))
            trace = tuple((spent + evaluations, objective) for evaluations, objective in found.trace)
            spent, seconds = spent + found.cost.gradient_evaluations, seconds + found.cost.seconds
            tries.append((candidate, replace(found, trace=trace)))
            if found.status in (Status.EXACT, Status.STOPPED):
                break
        return self._answer(tries, Cost(spent, seconds))

    def _shares(self, observation: Observation, budget: Budget) -> Iterator[tuple[LocalTraining, _Share]]:
        examples = observation.examples or 1
        prices = [candidate.steps(examples) for candidate in self.candidates]
        for index, candidate in enumerate(self.candidates):
            yield candidate, _Share(budget, prices[index], sum(prices[index:]))

    def _answer(self, tries: list[tuple[LocalTraining, Reconstruction]], cost: Cost) -> Reconstruction:
        if not tries:
            return Reconstruction(None, None, Status.OUT_OF_BUDGET, "the budget allowed no candidate", cost=cost)
        answered = [(candidate, found) for candidate, found in tries if found.inputs is not None]
        if not answered:
            return replace(tries[0][1], cost=cost)
        chosen, best = min(answered, key=lambda pair: _distance(pair[1]))
        message = (
            f"{chosen.epochs} local epochs at lr {chosen.optimiser.lr:g}, of {len(answered)} candidates the nearest"
        )
        return replace(best, message=f"{message}; {best.message}".removesuffix("; "), cost=cost)


@dataclass(frozen=True)
class _Share:
    """A candidate's part of what is left: `price` of the `total` of itself and those to come."""

    budget: Budget
    price: int
    total: int

    def __call__(self, spent: int, seconds: float) -> Budget | None:
        """`None` where it buys no step."""
        evaluations, limit = self.budget.gradient_evaluations, self.budget.seconds
        if evaluations is not None:
            evaluations = (evaluations - spent) * self.price // self.total
            if evaluations < self.price:
                return None
        if limit is not None:
            limit = (limit - seconds) * self.price / self.total
            if limit <= 0:
                return None
        return Budget(gradient_evaluations=evaluations, seconds=limit)


def _distance(found: Reconstruction) -> float:
    """Closed forms, which certify themselves, have none and come first."""
    if found.objective is None:
        return -1.0 if found.status is Status.EXACT else float("inf")
    return found.objective if found.objective == found.objective else float("inf")  # not-a-number is no answer


def _from(spent: int, on_step: OnStep | None) -> OnStep | None:
    """The caller's callback, told of the whole search's evaluations."""
    if on_step is None:
        return None
    return lambda step: on_step(Step(step.index, step.objective, spent + step.gradient_evaluations))
