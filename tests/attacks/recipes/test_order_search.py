"""Label orders of a client that shuffles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.matching import BoundedLBFGS, Matching, Pixels, Uniform
from leakgauge.attacks.recipes import Auto, OrderSearch
from leakgauge.attacks.recipes.order_search import MADE_UP, nearest_orders, orders_of, several_steps, unordered
from leakgauge.clients import FedAvg, LocalTraining, Protocol, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.observation import Cost, Knowledge, Observation, Reconstruction, Status

CLIENT = FedAvg(epochs=1, batch_size=1, lr=0.3, shuffle=True)
RACED = replace(CLIENT, optimiser=replace(CLIENT.optimiser, momentum=1e-3))
"""The last layer's steps of such a client are not read, so orders race."""
INNER = Matching(canvas=Pixels(first=Uniform()), minimiser=BoundedLBFGS(steps=60))


def seen(client: Protocol = RACED, n: int = 3, draws: int = 1) -> tuple[Observation, list[int]]:
    """The observation, and the labels in the order in which the client visited them."""
    t, b = task("smooth"), batch(n)
    update = client_update(t, client, b, Draws(draws))
    visited = [int(b.labels[i]) for i in torch.cat(client.order(n, Draws(draws)))]
    return Observation(t, update, Knowledge(b.labels, n, client)), visited


def run(attack, observation: Observation, evaluations: int | None = None, **options) -> Reconstruction:
    generator = torch.Generator().manual_seed(0)
    return attack.reconstruct(observation, generator, budget=Budget(gradient_evaluations=evaluations), **options)


def test_orders_are_all_of_them_and_differ() -> None:
    g = torch.Generator().manual_seed(0)
    assert set(orders_of([1, 1, 2], 1, 24, g)) == {(1, 1, 2), (1, 2, 1), (2, 1, 1)}
    assert set(orders_of([1, 2, 3, 4], 2, 24, g)) == set(orders_of([4, 3, 2, 1], 2, 99, g))
    assert len(set(orders_of([1, 2, 3, 4], 2, 24, g))) == math.comb(4, 2), "within a step the order is nothing"
    assert len(list(orders_of([0, 1, 2, 3, 4, 5], 1, 24, g))) == 24


@pytest.mark.parametrize("client", [CLIENT, RACED], ids=["read", "raced"])
def test_the_order_that_the_client_had_is_found(client: LocalTraining) -> None:
    """An order drawn at random stood for it."""
    right = 0
    several = 2 if client is CLIENT else 4
    for draws in range(several):
        observation, visited = seen(client, draws=draws)
        found = run(OrderSearch(attack=INNER), observation)
        assert found.labels is not None
        right += found.labels.tolist() == visited
    assert right >= (2 if client is CLIENT else 3)


def test_labels_that_came_by_count_have_no_order_either() -> None:
    """An unshuffled client whose labels were not given was taken to have visited them sorted."""
    t, b, known = task("smooth"), batch(3).take(torch.tensor([2, 0, 1])), replace(CLIENT, shuffle=False)
    sent = client_update(t, known, b, Draws(0))
    observation, hidden = (Observation(t, sent, Knowledge(labels, 3, known)) for labels in (b.labels, None))
    assert unordered(hidden)
    assert not unordered(observation)
    assert b.labels.tolist() != sorted(b.labels.tolist())
    found = run(OrderSearch(attack=INNER), hidden, 400)
    assert found.labels is not None
    assert found.labels.tolist() == b.labels.tolist()


@dataclass(frozen=True)
class Counting:
    """Notes what it was given; its objective says nothing."""

    given: list[tuple[int | None, tuple[int, ...]]] = field(default_factory=list)

    def reconstruct(self, observation, generator, *, budget, compute, on_step=None) -> Reconstruction:
        order = tuple(observation.knowledge.labels.tolist())
        self.given.append((budget.gradient_evaluations, order))
        assert not observation.knowledge.local_training.shuffle
        spent = budget.gradient_evaluations or 0
        objective = float(order != (4, 0, 3)) if len(set(order)) == 3 else 1.0
        return Reconstruction(None, None, Status.OUT_OF_BUDGET, objective=objective, cost=Cost(spent))


def test_near_orders_go_on_and_all_heats_get_half_of_the_budget() -> None:
    spy = Counting()
    observation = seen()[0]
    observation = replace(observation, knowledge=replace(observation.knowledge, labels=torch.tensor([0, 3, 4])))
    found = run(OrderSearch(attack=spy, kept=6), observation, 1200)
    first = spy.given[:6]
    assert {order for _, order in first} == set(orders_of([0, 3, 4], 1, 24, torch.Generator()))
    assert {n for n, _ in first} == {3 * ((600 - 6 * 3 * MADE_UP) // 18)}
    assert spy.given[6:] == [(1200 - 6 * 3 * MADE_UP - 6 * first[0][0], (4, 0, 3))]
    assert found.cost.gradient_evaluations == 1200
    poor = Counting()
    assert run(OrderSearch(attack=poor), observation, 100).cost.gradient_evaluations <= 100


def test_the_winner_goes_on_from_its_own_examples() -> None:
    """It began anew, and a search that found the right order ended behind one that never looked for it."""
    attack = OrderSearch(attack=INNER, heat=20, heats=1)
    observation, _ = seen()
    found = run(attack, observation, 1200)
    assert found.objective is not None
    begun = found.trace[0][1]
    fresh = run(INNER, replace(observation, knowledge=replace(observation.knowledge, labels=found.labels)), 1200)
    assert begun < fresh.trace[0][1] / 2


def test_made_up_examples_put_the_true_order_in_front() -> None:
    ranks = []
    for draws in range(6):
        observation, visited = seen(draws=draws)
        known = replace(observation.knowledge, local_training=replace(CLIENT, shuffle=False))
        orders = orders_of(observation.knowledge.labels.tolist(), 1, 24, torch.Generator().manual_seed(0))
        candidates = [replace(observation, knowledge=replace(known, labels=torch.tensor(o))) for o in orders]
        ranked = nearest_orders(candidates, torch.Generator().manual_seed(1))
        ranks.append((ranked.index(tuple(visited)) + 1) / len(ranked))
    assert sum(ranks) / len(ranks) < 0.5


def test_where_the_order_is_known_or_nothing_it_is_the_attack_itself() -> None:
    for client in (replace(RACED, shuffle=False), replace(CLIENT, batch_size=None)):
        observation, _ = seen(client)
        assert not unordered(observation)
        one, other = (run(a, observation, 12) for a in (OrderSearch(attack=INNER), INNER))
        assert torch.equal(one.inputs, other.inputs)
    observation, _ = seen()
    drawn = replace(observation, knowledge=replace(observation.knowledge, draws=Draws(1)))
    for one in (drawn, seen(n=1)[0]):
        assert several_steps(one) is None
        assert not unordered(one)


def test_auto_searches_orders_and_says_so() -> None:
    found = run(Auto(), seen()[0], 120)
    assert found.tried[-1].name == "order-search"
    assert "orders of the labels" in found.message
    assert found.cost.gradient_evaluations <= 120


def test_whoever_stops_it_stops_the_search() -> None:
    found = run(OrderSearch(attack=INNER), seen()[0], on_step=lambda _: True)
    assert found.status is Status.STOPPED
    assert found.cost.gradient_evaluations == 3 + 6 * 3 * MADE_UP, "the orders were ranked, and one step taken"
