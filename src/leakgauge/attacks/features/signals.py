"""What is known inside a network: hidden tensors, and error signals as far as they follow from these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.inside import Inside
from leakgauge.view.graph import OuterSum

AGREE = 1e-6
"""Two probes of one slope differ by no more where it is the same everywhere."""


@dataclass(frozen=True)
class Kink:
    """A function of each entry alone that is linear on both sides of zero."""

    above: float
    below: float

    def argument(self, value: Tensor) -> Tensor:
        """An argument of that value, −1 where the value is zero and many have it."""
        low = value / self.below if self.below else torch.full_like(value, -1.0)
        return torch.where(value > 0, value / self.above, low)


def kink(inside: Inside, node: Node) -> Kink | None:
    """What a node does to the one tensor that it is made of, where that is a `Kink`: a ReLU, leaky or not."""
    operands = inside.operands(node)
    if len(operands) != 1 or node.meta["val"].shape != operands[0].meta["val"].shape:
        return None
    points = torch.tensor([-30.0, -7.0, -1.0, 1.0, 7.0, 30.0], dtype=torch.float64)
    try:
        (made,) = inside.run([node], {operands[0]: points.clone()})
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    if not isinstance(made, Tensor) or made.shape != points.shape:
        return None
    slopes = made / points
    flat = bool((slopes[:3] == slopes[0]).all() and (slopes[3:] == slopes[3]).all())
    return Kink(float(slopes[3]), float(slopes[0])) if flat and float(slopes[3]) > 0 else None


@dataclass(eq=False)
class KnownInside:
    """Values and error signals of a batch.

    Attributes:
        values: of hidden tensors.
        sent: ∂loss/∂ what a node of the way back belongs to.
    """

    inside: Inside
    values: dict[Node, Tensor] = field(default_factory=dict)
    sent: dict[Node, Tensor] = field(default_factory=dict)
    _kinks: dict[Node, Kink | None] = field(default_factory=dict)

    def kink(self, node: Node) -> Kink | None:
        """`kink`, once a node."""
        if node not in self._kinks:
            self._kinks[node] = kink(self.inside, node)
        return self._kinks[node]

    @property
    def given(self) -> dict[Node, Tensor]:
        """What error signals may rest on: the arguments of kinks, as far as a slope depends on them, among it."""
        arguments = {}
        for node, value in self.values.items():
            if (bent := self.kink(node)) is not None:
                arguments[self.inside.operands(node)[0]] = bent.argument(value)
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
        base = self.inside.graph.behind_base(node)
        if base in self.sent or self.inside.open(node, [base]):
            return
        shape = self.sent[node].shape
        draws = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        if self.inside.value_shape(base) != shape:
            return
        slope, made = (self.inside.run([node], {base: t})[0] for t in (torch.ones_like(draws), draws))
        if bool((made - slope * draws).norm() <= AGREE * made.norm()) and bool((slope != 0).all()):
            self.sent[base] = self.sent[node] / slope

    def shifts(self, names: set[str]) -> Iterator[tuple[str, Float[Tensor, "n channels"]]]:
        """What the known signals of each example say of the gradients of shifts, plain sums over places.

        Not those that change with the scale of a hidden tensor, which may not be known.
        """
        longer = KnownInside(self.inside, {n: 2 * t for n, t in self.values.items()}, self.sent, self._kinks).given
        given = self.given
        for product in self.inside.graph.products:
            if product.activation is not None or product.weight not in names or len(product.terms) > 1:
                continue
            operand = product.terms[0].signal
            if self.inside.open(operand.node, given):
                continue
            one, two = (self.inside.run([operand.node], g)[0] for g in (given, longer))
            if torch.equal(one, two):
                yield product.weight, self._sums(product, one)

    def _sums(self, product: OuterSum, value: Tensor) -> Float[Tensor, "n channels"]:
        return self.inside.signals(product.terms[0].signal, product, value).sum(1)
