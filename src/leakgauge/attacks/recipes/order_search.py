"""An attack for clients that shuffle: which label came at which local step is searched for first."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.clients import FedAvg
from leakgauge.compute import Budget, Compute
from leakgauge.errors import require
from leakgauge.observation import Attack, Cost, Observation, OnStep, Reconstruction, Status, Step
from leakgauge.registry import ATTACKS


@ATTACKS.register("order-search", needs="what its attack needs; an attack that reports an objective")
@dataclass(frozen=True, kw_only=True)
class OrderSearch:
    """`attack` for a few steps with every order of the labels over the local steps, then in full with the best.

    A client that shuffles visits its examples in an order that the server does not know. Examples have no names, so
    the first epoch may be taken in sequence; which *label* comes at which step is then unknown, and a wrong order costs
    more than a short search. Candidates start alike. All of them get `first` steps, the best third of them (by data
    term) `second`, the best of those the rest; candidates get at most half of the budget. Later epochs are taken to
    repeat the first one's order. Where the order is known, or does not matter, it is `attack`.

    Source: ours.

    Attributes:
        attack: with an objective that means the same for every order.
        first, second: steps of the two rounds.
        most: candidates; of more orders so many are drawn.
    """

    attack: Attack
    first: int = 10
    second: int = 25
    most: int = 24

    def __post_init__(self) -> None:
        for name in ("first", "second", "most"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """The answer with the best order; its message says how many were tried."""
        began = time.perf_counter()
        client, count = shuffled(observation), observation.examples
        labels = observation.knowledge.labels
        if client is not None and labels is None:
            guess = CountsFromLastLayer().infer(observation, generator.clone_state())
            labels = None if isinstance(guess, Unknown) else guess.labels
        if client is None or count is None or labels is None:
            return self.attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
        size, price = client.batch_size or count, client.steps(count)
        known = replace(observation.knowledge, local_training=replace(client, shuffle=False))
        orders = list(orders_of(labels.tolist(), size, self.most, generator))
        seed = int(torch.randint(2**31, (), generator=generator))
        limit, spent = budget.gradient_evaluations, 0

        def attempt(order: tuple[int, ...], evaluations: int | None) -> Reconstruction:
            seen = replace(observation, knowledge=replace(known, labels=torch.tensor(order, dtype=labels.dtype)))
            seconds = None if budget.seconds is None else budget.seconds - (time.perf_counter() - began)
            if seconds is not None and seconds <= 0:
                return Reconstruction(None, None, Status.TIME_LIMIT, "no time was left")
            start = spent
            return self.attack.reconstruct(
                seen,
                torch.Generator().manual_seed(seed),
                budget=Budget(gradient_evaluations=evaluations, seconds=seconds),
                compute=compute,
                on_step=None
                if on_step is None
                else lambda s: on_step(Step(s.index, s.objective, start + s.gradient_evaluations)),
            )

        tried, kept = len(orders), orders
        for steps, keep in ((self.first, max(-(-len(orders) // 3), 1)), (self.second, 1)):
            if len(kept) < 2:
                break
            if limit is not None:
                # All rounds together get half of the budget.
                steps = min(steps, (limit // 2 - spent) // (price * len(kept)))
            if steps < 2:
                break
            scored: list[tuple[float, tuple[int, ...]]] = []
            for order in kept:
                found = attempt(order, steps * price)
                spent += found.cost.gradient_evaluations
                if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                    return replace(found, cost=Cost(spent, time.perf_counter() - began))
                value = found.objective if found.objective is not None else math.inf
                scored.append((value if value == value else math.inf, order))
            kept = [order for _, order in sorted(scored)[:keep]]
        left = None if limit is None else limit - spent
        if left is not None and left < 1:
            return Reconstruction(None, None, Status.OUT_OF_BUDGET, "the budget allowed no evaluation")
        found = attempt(kept[0], left)
        trace = tuple((spent + n, value) for n, value in found.trace)
        said = f"of {tried} orders of the labels the nearest" if tried > 1 else ""
        message = "; ".join(filter(None, (said, found.message)))
        cost = Cost(spent + found.cost.gradient_evaluations, time.perf_counter() - began)
        return replace(found, message=message, cost=cost, trace=trace)


def shuffled(observation: Observation) -> FedAvg | None:
    """The client, where it visits parts of its examples in an order that is not known."""
    client, count = observation.knowledge.local_training, observation.examples
    if not isinstance(client, FedAvg) or not client.shuffle or observation.knowledge.draws is not None:
        return None
    if count is None or count < 2 or client.batch_size is None or client.batch_size >= count:
        return None
    return client


def orders_of(labels: list[int], size: int, most: int, generator: torch.Generator) -> Iterator[tuple[int, ...]]:
    """Different orders of labels over steps of `size` examples: all of them, or `most` drawn at random.

    Within a step the order does not matter.
    """
    everything = math.factorial(len(labels))
    found: set[tuple[int, ...]] = set()
    for _ in range(min(20 * most, 50 * everything)):
        drawn = [labels[i] for i in torch.randperm(len(labels), generator=generator).tolist()]
        order = tuple(label for at in range(0, len(drawn), size) for label in sorted(drawn[at : at + size]))
        if order not in found:
            found.add(order)
            yield order
        if len(found) == most:
            return
