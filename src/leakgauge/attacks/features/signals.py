"""What is known inside a network: hidden tensors, and error signals as far as they follow from these."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside
from leakgauge.errors import FOREIGN
from leakgauge.view.axes import shape_of

LEAST = 1e-2  # share of what a factor might be, if all was alike, that it is at least
AGREE = 1e-6  # two probes of one slope differ by no more where it is the same everywhere


@dataclass(frozen=True)
class Kink:
    """A function of each entry alone that is linear on both sides of zero."""

    at: Node  # what it is a function of
    above: float
    below: float

    def argument(self, value: Tensor) -> Tensor:
        """An argument of that value, −1 where the value is zero and many have it."""
        low = value / self.below if self.below else torch.full_like(value, -1.0)
        return torch.where(value > 0, value / self.above, low)

    @property
    def straight(self) -> bool:
        return self.above == self.below


@dataclass(frozen=True, eq=False)
class Rising:
    """A function of each entry alone that rises everywhere: a sigmoid, tanh, softplus."""

    at: Node  # what it is a function of
    of: Callable[[Tensor], Tensor]
    straight: bool = False  # a line that does not meet zero at zero
    below: ClassVar[float] = 1.0

    def argument(self, value: Tensor) -> Tensor:
        """The argument of that value, within ±`FARTHEST`, by bisection."""
        low, high = torch.full_like(value, -FARTHEST), torch.full_like(value, FARTHEST)
        for _ in range(60):
            middle = (low + high) / 2
            under = self.of(middle) < value
            low, high = torch.where(under, middle, low), torch.where(under, high, middle)
        return (low + high) / 2

    def shown(self, argument: Tensor) -> Tensor:
        """How well the value tells an argument, up to 1: where the function is flat, an error of the value is large in
        the argument."""
        slope = (self.of(argument + STEP) - self.of(argument - STEP)).clamp_min(0) / (2 * STEP)
        return slope / (slope + FLAT * self.of(torch.arange(-5, 5, 0.05).to(argument)).diff().max() / 0.05)


STEP, FLAT = 1e-4, 0.03  # of an argument, to tell a slope; what share of the steepest slope halves its weight
TOLD = 1e-2  # least weight of an entry that is an equation
DEEP = 24  # operations that an activation is written in, at most, where it has parameters of its own
SAME = 1e-9  # slopes that are no further apart are one, zero among them
FARTHEST = 30.0  # arguments of a function that saturates are looked for up to here


def activation(inside: Inside, node: Node) -> Kink | Rising | None:
    """What a node does to each entry of one tensor alone, in however many operations, where that can be undone: a ReLU,
    leaky or not (its zeros apart), or a function that rises."""
    found = None
    for base in _bases(inside, node):
        made = _function(inside, node, base)
        found = found or made
        if made is not None and not made.straight:
            return made
    return found


def _bases(inside: Inside, node: Node) -> Iterator[Node]:
    """Tensors that a node is a function of, each alone, the nearest first."""
    order = {n: k for k, n in enumerate(inside.graph.trace.code.graph.nodes)}
    data, learned = inside.graph.colours.data, inside.graph.colours.parameters
    open_ = data.intersection(node.all_input_nodes)
    for count in itertools.count(1):
        if len(open_) == 1:
            yield next(iter(open_))
        last = max(open_, key=order.__getitem__, default=None)
        if last is None or last is inside.inputs or (count >= DEEP and learned[last] != learned[node]):
            return
        open_ = (open_ - {last}) | data.intersection(last.all_input_nodes)


def _function(inside: Inside, node: Node, base: Node) -> Kink | Rising | None:
    values, count = [n.meta["val"] for n in (node, base)], inside.graph.trace.examples
    rows = all(isinstance(value, Tensor) and value.shape[:1] == (count,) for value in values)
    if not rows or values[0].numel() != values[1].numel():  # a pool's values and their places
        return None

    each = values[0].numel() // count

    def of(points: Tensor) -> Tensor:
        some = replace(inside, examples=-(-points.numel() // each))
        filled = points.new_zeros(some.examples * each)
        filled[: points.numel()] = points.flatten()
        made = some.run([node], {base: filled.view(some.value_shape(base))})[0]
        return made.flatten()[: points.numel()].view(points.shape)

    points = torch.linspace(-FARTHEST, FARTHEST, 2000, dtype=torch.float64)
    try:
        made, turned, part = of(points), of(points.flip(0)), of(points[700:])
    except FOREIGN:
        return None
    if not torch.equal(made, turned.flip(0)) or not torch.equal(part, made[700:]):  # a mean that is zero here, say
        return None
    below, above = (float(slope) if abs(slope) > SAME else 0.0 for slope in (made / points)[[0, -1]])
    if bool((made - torch.where(points < 0, below * points, above * points)).abs().max() <= SAME * FARTHEST):
        return Kink(base, above, below) if above > 0 else None
    middle, steps = points.abs() < 5, made.diff()
    if not bool((steps >= 0).all() and (made[middle].diff() > 0).all()):
        return None
    return Rising(base, of, straight=bool((steps - steps[0]).abs().max() <= SAME * steps[0]))


def argument_of(bent: Kink | Rising, value: Float[Tensor, "n *shape"]) -> Float[Tensor, "n *at"]:
    """An argument of the value that was known, in the shape of what it is a function of."""
    return bent.argument(value).reshape(len(value), *shape_of(bent.at)[1:])


@dataclass(eq=False)
class KnownInside:
    """Values and error signals of a batch."""

    inside: Inside
    values: dict[Node, Tensor] = field(default_factory=dict)  # of hidden tensors
    sent: dict[Node, Tensor] = field(default_factory=dict)  # ∂loss/∂ what a node of the way back belongs to
    _bends: dict[Node, Kink | Rising | None] = field(default_factory=dict)

    def bent(self, node: Node) -> Kink | Rising | None:
        """`activation`, once a node."""
        if node not in self._bends:
            self._bends[node] = activation(self.inside, node)
        return self._bends[node]

    @property
    def given(self) -> dict[Node, Tensor]:
        """What error signals may rest on: the arguments of activations, as far as a slope depends on them, among it."""
        bends = ((self.bent(node), value) for node, value in self.values.items())
        arguments = {bent.at: argument_of(bent, value) for bent, value in bends if bent is not None}
        return arguments | self.values | self.sent

    def signal(self, node: Node) -> Tensor | None:
        """A node of the way back; `None` where it depends on what is not known."""
        if node not in self.sent:
            if self.inside.open(node, given := self.given):
                return None
            (self.sent[node],) = self.inside.run([node], given)
        return self.sent[node]

    def lifted(self, node: Node) -> None:
        """Carries a known signal up to the tensor of which it is a multiple, entry by entry."""
        base = [n for n in self.inside.graph.behind(node) if n.meta["val"].is_floating_point()][-1]  # none is complex
        shape = self.sent[node].shape
        if base in self.sent or self.inside.value_shape(base) != shape or self.inside.open(node, [base]):
            return
        draws = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        slope, made = (self.inside.run([node], {base: t})[0] for t in (torch.ones_like(draws), draws))
        if bool((made - slope * draws).norm() <= AGREE * made.norm()) and bool((slope != 0).all()):
            self.sent[base] = self.sent[node] / slope

    def shifts(self, names: set[str]) -> Iterator[tuple[str, Float[Tensor, "n channels"]]]:
        """What the known signals of each example say of the gradients of shifts, plain sums over places. Not those that
        change with the scale of a hidden tensor, which may not be known."""
        longer = KnownInside(self.inside, {n: 2 * t for n, t in self.values.items()}, self.sent, self._bends).given
        given = self.given
        for product in self.inside.graph.products:
            if product.activation is not None or product.weight not in names or len(product.terms) > 1:
                continue
            operand = product.terms[0].signal
            if self.inside.open(operand.node, given):
                continue
            one, two = (self.inside.run([operand.node], g)[0] for g in (given, longer))
            if torch.equal(one, two):
                yield product.weight, self.inside.signals(product, one).sum(1)


@dataclass(frozen=True, eq=False)
class KnownTerm:
    """A node whose value is known, and the graph's own that it is compared with."""

    node: Node  # compared at: the argument of an activation, or the known node itself
    value: Tensor
    kinked: bool  # whether it may be anything below zero where it is not above
    free: bool = False  # whether it is known up to one factor of the whole batch
    weights: Tensor | None = None  # of its entries, where not all are known as well

    @staticmethod
    def of(node: Node, value: Tensor, known: KnownInside) -> "KnownTerm":
        """A hidden tensor, compared at the argument of its activation."""
        bent = known.bent(node)
        if bent is None:
            return KnownTerm(node, value, False)
        argument = argument_of(bent, value)
        weights = bent.shown(argument) if isinstance(bent, Rising) else None
        return KnownTerm(bent.at, argument, not bent.below, weights=weights)

    def changed(self, change: Callable[[Tensor], Tensor]) -> "KnownTerm":
        """In another precision, or of some examples."""
        weights = None if self.weights is None else change(self.weights)
        return replace(self, value=change(self.value), weights=weights)

    def __post_init__(self) -> None:
        # Slopes take over its strides, and batch norm's kernel answers wrongly to one example in any others.
        object.__setattr__(self, "value", self.value.contiguous())

    @property
    def open(self) -> Bool[Tensor, "*shape"]:
        """Where it may be anything below zero."""
        return self.value <= 0 if self.kinked else torch.zeros_like(self.value, dtype=torch.bool)

    @property
    def active(self) -> int:
        """How many entries are equations."""
        return int((~self.open if self.weights is None else self.weights > TOLD).sum())

    def gaps(self, made: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """What its node's value lacks of the known one."""
        value = self.value.to(made)
        if self.free:  # the factor that leaves least, and no small one, by which all would be alike
            active, own = made.masked_fill(self.open, 0), value.masked_fill(self.open, 0)
            factor = (active * own).sum() / own.square().sum()
            made = made / factor.clamp_min(LEAST * (active.norm() / own.norm()).detach())
        gaps = torch.where(self.open, made.clamp_min(0), made - value)
        return gaps if self.weights is None else gaps * self.weights.to(gaps)
