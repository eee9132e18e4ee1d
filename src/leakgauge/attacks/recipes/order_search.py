"""An attack for clients of several local steps: which label came at which step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.exact.head_steps import HeadSteps, read_head_steps
from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.attacks.labels.head import made_up
from leakgauge.attacks.labels.strategy import find_classifier
from leakgauge.attacks.matching.simulator import Simulator, relative_distance
from leakgauge.clients.protocol import Protocol as Client
from leakgauge.errors import require
from leakgauge.observation import Attack, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch

SHORTEST = 5
"""Steps below which a heat says nothing."""

MADE_UP = 2
"""Batches of made-up examples that an order is simulated on."""


@runtime_checkable
class Resumable(Protocol):
    """An attack that can go on from examples that it, or another, found."""

    def resumed(self, inputs: Float[Tensor, "n *shape"]) -> Attack:
        """The same attack, but from these raw examples."""


@ATTACKS.register("order-search", needs="what its attack needs; an attack that reports an objective")
@dataclass(frozen=True, kw_only=True)
class OrderSearch(SearchingAttack):
    """Finds the order of the labels over the local steps, then gives the rest of the budget to `attack`.

    A client that shuffles visits its examples in an order that the server does not know. Examples have no names, so
    the first epoch may be taken in sequence; which *label* comes at which step is then unknown, and a wrong order costs
    more than a search for it. Where the last layer's own steps can be read (`read_head_steps`) they say the order
    without a gradient evaluation.

    Else every order is simulated on made-up examples: at local learning rates where the order matters, the last
    layer's part of the update shows it whatever the examples are. The nearest `kept` start alike and race: after every
    heat those stay whose data term is within `near` of the best, and each goes on from its own examples. There are at
    most `heats`, each twice as long as the one before, on at most half of the budget. Later epochs are taken to repeat
    the first one's order. Where nothing of this applies it is `attack`; an attack that is not `Resumable` starts anew
    in every heat.

    Source: ours.

    Attributes:
        attack: with an objective that means the same for every order.
        heat, heats: steps of the first heat, and the most heats.
        kept: orders that race.
        near: largest ratio of data terms with which an order stays.
        most: orders that are tried; of more so many are drawn. Five examples have 120.
    """

    attack: Attack
    heat: int = 50
    heats: int = 3
    kept: int = 4
    near: float = 2.0
    most: int = 121

    def __post_init__(self) -> None:
        for name in ("heat", "heats", "kept", "most"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(self.near > 1, "near", f"is {self.near}", "give more than 1")

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """The answer with the best order; its message says how many were tried."""
        client, count, generator = several_steps(observation), observation.examples, effort.generator
        labels = observation.knowledge.labels
        if client is not None and labels is None:
            guess = CountsFromLastLayer().infer(observation, generator.clone_state())
            labels = None if isinstance(guess, Unknown) else guess.labels
        if client is None or count is None or labels is None:
            return effort.of(self.attack, observation)
        told = observation.linear
        size, price = count if told is None else told.sizes[0], client.steps(count)
        known = replace(
            observation.knowledge, local_training=client.with_loop(lambda loop: replace(loop, shuffle=False))
        )
        if not unordered(observation):
            return effort.of(self.attack, observation)
        orders = list(orders_of(labels.tolist(), size, self.most, generator))
        every = len(orders) < self.most  # of a sample the nearest may be as wrong as the others
        limit, own, spent = effort.budget.gradient_evaluations, generator.clone_state(), 0
        read = read_head_steps(observation, orders, own) if every else Unknown("too many orders")
        seed = int(torch.randint(2**31, (), generator=generator))

        def seen(order: tuple[int, ...]) -> Observation:
            return replace(observation, knowledge=replace(known, labels=torch.tensor(order, dtype=labels.dtype)))

        def attempt(runner: _Runner, evaluations: int | None) -> Reconstruction:
            left = replace(effort, generator=torch.Generator().manual_seed(seed)).left(spent, evaluations)
            if isinstance(left, Status):
                return Reconstruction(None, None, left, "the budget allowed no evaluation")
            return left.of(runner.attack, seen(runner.order))

        tried = len(orders)
        if isinstance(read, HeadSteps):
            orders = list(read.orders)
        affordable = tried if limit is None else min(tried, limit // (8 * MADE_UP * price))
        if min(len(orders), affordable) > 1:
            affordable = min(len(orders), affordable)
            spent += affordable * MADE_UP * price
            orders = nearest_orders([seen(o) for o in orders[:affordable]], generator)
        if isinstance(read, HeadSteps):
            # Orders that it cannot tell apart differ by examples that left nothing in the update.
            orders = orders[:1]
        field = [_Runner(order, self.attack) for order in orders[: self.kept]]
        steps = self.heat
        for _ in range(self.heats):
            if len(field) < 2:
                break
            if limit is not None:
                # All heats together get half of the budget.
                steps = min(steps, (limit // 2 - spent) // (price * len(field)))
            if steps < SHORTEST:
                break
            for runner in field:
                found = attempt(runner, steps * price)
                spent += found.cost.gradient_evaluations
                if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                    return replace(found, cost=effort.cost(spent))
                runner.keep(found)
            field.sort(key=lambda runner: runner.distance)
            field = [r for r in field if r.distance <= self.near * field[0].distance]
            steps *= 2
        found = attempt(field[0], None)
        trace = tuple((spent + n, value) for n, value in found.trace)
        said = f"of {tried} orders of the labels the nearest" if tried > 1 else ""
        if isinstance(read, HeadSteps):
            fit = len(read.orders)
            said = f"the last layer's steps leave {fit} of {tried} orders of the labels" if tried > 1 else ""
        message = "; ".join(filter(None, (said, found.message)))
        return replace(found, message=message, cost=effort.cost(spent + found.cost.gradient_evaluations), trace=trace)


@dataclass(eq=False)
class _Runner:
    """An order in the race, and the attack that goes on from what it found."""

    order: tuple[int, ...]
    attack: Attack
    distance: float = math.inf

    def keep(self, found: Reconstruction) -> None:
        if found.objective is not None and not math.isnan(found.objective):
            self.distance = found.objective
        if found.inputs is not None and isinstance(self.attack, Resumable):
            self.attack = self.attack.resumed(found.inputs)


def nearest_orders(candidates: list[Observation], generator: torch.Generator) -> list[tuple[int, ...]]:
    """The orders of the candidates' labels, nearest first, by the updates that they make of made-up examples.

    Distance is that of the classifier's weight, relative, with its length where that is known; of the whole update
    where no classifier is found. `MADE_UP` simulations an order, without a second derivative.
    """
    candidates = [seen.view for seen in candidates]
    first = candidates[0]
    made = [made_up(first.task.data, first.examples or 1, generator).double() for _ in range(MADE_UP)]
    simulator = Simulator.of(first, torch.empty((), dtype=torch.float64), generator)
    layer = find_classifier(first)
    part = simulator.observed if isinstance(layer, Unknown) else {layer.weight: simulator.observed[layer.weight]}
    scored: list[tuple[float, tuple[int, ...]]] = []
    for seen in candidates:
        labels = seen.knowledge.labels
        assert labels is not None
        with torch.no_grad():
            sent = [simulator(Batch(inputs, labels)) for inputs in made]
        gaps = [relative_distance(one, part, free=not simulator.scale_known) for one in sent]
        scored.append((sum(gaps), tuple(labels.tolist())))
    return [order for _, order in sorted(scored)]


def several_steps(observation: Observation) -> Client | None:
    """The client, where it visits its examples in parts, one after the other, in an order that can be searched for."""
    client, count = observation.knowledge.local_training, observation.examples
    if client is None or client.aggregates or (client.shuffle and observation.knowledge.draws is not None):
        return None
    told = observation.linear
    return None if count is None or told is None or len(told.sizes) < 2 or told.sizes[0] >= count else client


def unordered(observation: Observation) -> bool:
    """Whether it is unknown which label comes at which step: the client shuffles, or the labels are read by count."""
    client, labels = several_steps(observation), observation.knowledge.labels
    return client is not None and (client.shuffle or labels is None)


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
