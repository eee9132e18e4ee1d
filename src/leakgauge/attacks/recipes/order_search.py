"""Clients of several local steps: which label came at which step, told by the last layer's own steps or by a race."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import HeadSpan, Unknown, find_classifier, least_squares, made_up, stand_ins
from leakgauge.attacks.matching.simulator import Simulator, relative_distance
from leakgauge.clients import Protocol
from leakgauge.defenses import NoDefense, parts_of
from leakgauge.errors import Checked, limited, positive
from leakgauge.observation import Attack, Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, cross_entropy
from leakgauge.tracing import LinearLayer
from leakgauge.view.entries import rounding_norms

Order = tuple[int, ...]

STARTS, FEW, FIRST, THEN, FINALISTS = 2, 24, 40, 160, 8
"""Starts of every order, at least so many in all; Levenberg–Marquardt iterations of each and of so many finalists."""

FITS, ALIKE = 50.0, 4.0  # times the rounding that an order fits with, and times the smallest misfit that is as good
SPARE = 1.76  # equations for each unknown, at least: of ten classes five examples were read, six were not


def read_head_steps(observation: Observation, orders: list[Order], generator: torch.Generator) -> list[Order]:
    """The orders under which the last layer's steps are what the update says, without the model below it, the nearest
    first; all that rounding cannot tell apart, and none where the client took other steps or no order explains them.

    With a bias, soft-max cross-entropy and plain SGD for one epoch, the layer's update is Σ_t −lr·(p_t − y_t)·h_tᵀ,
    where p_t = softmax(W_{t−1}·h_t + b_{t−1}): it depends on nothing but the n features h_t (`HeadSpan`). For every
    order these n² numbers are fitted from features of stand-ins to (n + 1)·(outputs − 1), and only the true order fits.
    It costs no gradient evaluation. Known failure: a saturated soft-max has no slope that would lead from one predicted
    class to another, and then no order fits.

    Source: ours.
    """
    observation, count = observation.view, len(orders[0])
    layer, told, client = find_classifier(observation), observation.linear, observation.knowledge.local_training
    if isinstance(layer, Unknown) or told is None or client is None or not _plain_steps(observation, layer, count):
        return []
    moved, parameters = layer.of(observation.update.tensors), layer.of(observation.task.parameters)
    if not bool(moved[0].isfinite().all()) or not bool(moved[0].any()):
        return []
    head = HeadSpan.of(parameters, moved, told.sizes, told.weights[0])
    like = [stand_ins(observation, count, generator) for _ in range(max(STARTS, FEW // len(orders)))]
    made = torch.stack([layer.features(observation.task, x) for x in like])
    if not bool(made.isfinite().all()):
        return []
    coded = F.one_hot(torch.tensor(orders), len(parameters[0])).double()
    # Of every order the best of its starts; only finalists are fitted to the end.
    starts = (made @ head.basis.T).expand(len(orders), *made.shape[:2], -1).flatten(0, 1)
    found, misfit = least_squares(head.residual, starts, FIRST, coded.repeat_interleave(len(made), 0))
    misfit, which = misfit.view(len(orders), -1).min(1)
    last = misfit.argsort()[:FINALISTS]
    found = found[which + len(made) * torch.arange(len(orders))]
    misfit[last] = least_squares(head.residual, found[last], THEN, coded[last])[1]
    norms = rounding_norms(observation.update, observation.task.parameters, client.steps(count))
    least, rounding = float(misfit.min()), norms[layer.weight] / float(moved[0].norm())
    if not least <= FITS * rounding:
        return []
    return [orders[i] for i in misfit.argsort().tolist() if float(misfit[i]) <= max(ALIKE * least, rounding)]


def _plain_steps(observation: Observation, layer: LinearLayer, count: int) -> bool:
    """Whether a layer with bias took one epoch of plain SGD under cross-entropy, on few enough examples."""
    task, told, known = observation.task, observation.linear, observation.knowledge
    if layer.bias is None or task.loss is not cross_entropy or task.penalties:
        return False
    if known.local_training is None or known.local_training.aggregates or parts_of(known.defense or NoDefense()):
        return False
    # Each step's gradient counts alike without momentum, and one epoch has all examples once.
    if told is None or told.decay or told.shortened or len(set(told.weights)) > 1 or sum(told.sizes) != count:
        return False
    outputs, width = task.parameters[layer.weight].shape
    return count <= width and (count + 1) * (outputs - 1) >= SPARE * count * count


SHORTEST = 5  # steps below which a heat says nothing
MADE_UP = 2  # batches of made-up examples that an order is simulated on


@ATTACKS.register("order-search", needs="what its attack needs; an attack that reports an objective")
@dataclass(frozen=True, kw_only=True)
class OrderSearch(Checked, SearchingAttack):
    """Finds the order of the labels over the local steps, then gives the rest of the budget to `attack`.

    Where the last layer's own steps can be read (`read_head_steps`) they say which label comes when. Else every order
    is simulated on made-up examples, and the `kept` whose last layer is nearest race: after every heat those stay
    whose data term is within `near` of the best. Heats get twice as long each, on at most half of the budget. Later
    epochs are taken to repeat the first one's order. Where nothing of this applies it is `attack`.

    Source: ours.

    Attributes:
        attack: with an objective that means the same for every order.
        heat, heats: steps of the first heat, and the most heats.
        kept: orders that race.
        near: largest ratio of data terms with which an order stays.
        most: orders that are tried; of more so many are drawn. Five examples have 120.
    """

    attack: Attack
    heat: int = positive(50)
    heats: int = positive(3)
    kept: int = positive(4)
    near: float = limited(2.0, lambda ratio: ratio > 1, "give more than 1")
    most: int = positive(121)

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """The answer with the best order; its message says how many were tried."""
        client, count, generator = several_steps(observation), observation.examples, effort.generator
        known, told = observation.knowledge, observation.linear
        labels = known.labels
        if client is not None and labels is None:
            guess = CountsFromLastLayer().infer(observation, generator.clone_state())
            labels = None if isinstance(guess, Unknown) else guess.labels
        if client is None or count is None or labels is None or not unordered(observation):
            return effort.of(self.attack, observation)
        size, price = count if told is None else told.sizes[0], client.steps(count)
        in_order = client.with_loop(lambda loop: replace(loop, shuffle=False))
        orders = list(orders_of(labels.tolist(), size, self.most, generator))
        tried, whole = len(orders), len(orders) < self.most  # of a sample the nearest may be as wrong as the others
        limit, own, spent = effort.budget.gradient_evaluations, generator.clone_state(), 0
        read = read_head_steps(observation, orders, own) if whole else []
        seed = int(torch.randint(2**31, (), generator=generator))

        def seen(order: Order) -> Observation:
            own = replace(known, labels=torch.tensor(order, dtype=labels.dtype), local_training=in_order)
            return replace(observation, knowledge=own)

        def attempt(runner: _Runner, evaluations: int | None) -> Reconstruction:
            left = replace(effort, generator=torch.Generator().manual_seed(seed)).left(spent, evaluations)
            if isinstance(left, Status):
                return Reconstruction(None, None, left, "the budget allowed no evaluation")
            return left.of(runner.attack, seen(runner.order))

        orders = read or orders
        affordable = len(orders) if limit is None else min(len(orders), limit // (8 * MADE_UP * price))
        if affordable > 1:
            spent += affordable * MADE_UP * price
            orders = nearest_orders([seen(o) for o in orders[:affordable]], generator)
        # Orders that the last layer's steps cannot tell apart differ by examples that left nothing in the update.
        field = [_Runner(order, self.attack) for order in orders[: 1 if read else self.kept]]
        steps = self.heat
        for _ in range(self.heats):
            if limit is not None:  # all heats together get half of the budget
                steps = min(steps, (limit // 2 - spent) // (price * len(field)))
            if len(field) < 2 or steps < SHORTEST:
                break
            for runner in field:
                found = attempt(runner, steps * price)
                spent += found.cost.gradient_evaluations
                if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                    return replace(found, cost=Cost(spent))
                runner.keep(found)
            field.sort(key=lambda runner: runner.distance)
            field = [r for r in field if r.distance <= self.near * field[0].distance]
            steps *= 2
        found = attempt(field[0], None).after(spent)
        said = f"of {tried} orders of the labels the nearest"
        if read:
            said = f"the last layer's steps leave {len(read)} of {tried} orders of the labels"
        message = "; ".join(filter(None, (said if tried > 1 else "", found.message)))
        return replace(found, message=message)


@dataclass(eq=False)
class _Runner:
    """An order in the race, and the attack that goes on from what it found."""

    order: Order
    attack: Attack
    distance: float = math.inf

    def keep(self, found: Reconstruction) -> None:
        if found.objective is not None and not math.isnan(found.objective):
            self.distance = found.objective
        if found.inputs is not None and isinstance(self.attack, SearchingAttack):
            self.attack = self.attack.resumed(found.inputs)


def nearest_orders(candidates: list[Observation], generator: torch.Generator) -> list[Order]:
    """The orders of the candidates' labels, nearest first, by the updates that they make of made-up examples, `MADE_UP`
    simulations an order: of the classifier's weight, or the whole update where no classifier is found."""
    candidates = [seen.view for seen in candidates]
    first, scored = candidates[0], list[tuple[float, Order]]()
    made = [made_up(first.task.data, first.examples or 1, generator).double() for _ in range(MADE_UP)]
    simulator = Simulator.of(first, torch.empty((), dtype=torch.float64), generator)
    layer = find_classifier(first)
    part = simulator.observed if isinstance(layer, Unknown) else {layer.weight: simulator.observed[layer.weight]}
    for seen in candidates:
        labels = seen.knowledge.labels
        assert labels is not None
        with torch.no_grad():
            sent = [simulator(Batch(inputs, labels)) for inputs in made]
        gaps = [relative_distance(one, part, free=not simulator.scale_known) for one in sent]
        scored.append((sum(gaps), tuple(labels.tolist())))
    return [order for _, order in sorted(scored)]


def several_steps(observation: Observation) -> Protocol | None:
    """The client, where it visits its examples in parts, one after the other, in an order that can be searched for."""
    client, count = observation.knowledge.local_training, observation.examples
    if client is None or client.aggregates or (client.shuffle and observation.knowledge.draws is not None):
        return None
    told = observation.linear
    return None if count is None or told is None or len(told.sizes) < 2 or told.sizes[0] >= count else client


def unordered(observation: Observation) -> bool:
    """Whether it is unknown which label comes at which step: the client shuffles, or the labels are read by count.
    Targets that are searched for find their step themselves."""
    client = several_steps(observation)
    shuffled = client is not None and (client.shuffle or observation.knowledge.labels is None)
    return shuffled and observation.task.layout.of_classes


def orders_of(labels: list[int], size: int, most: int, generator: torch.Generator) -> Iterator[Order]:
    """Different orders of labels over steps of `size` examples, within which the order does not matter: all of them, or
    `most` drawn at random."""
    found = set[Order]()
    for _ in range(min(20 * most, 50 * math.factorial(len(labels)))):
        drawn = [labels[i] for i in torch.randperm(len(labels), generator=generator).tolist()]
        order = tuple(label for at in range(0, len(drawn), size) for label in sorted(drawn[at : at + size]))
        if order not in found:
            found.add(order)
            yield order
        if len(found) == most:
            return
