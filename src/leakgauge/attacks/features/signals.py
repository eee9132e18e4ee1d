"""Error signals inside a network, carried from where they are known to where they are not, without the inputs."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.network import ATEN, Network

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


def kink(network: Network, node: Node) -> Kink | None:
    """What a node does to the one tensor that it is made of, where that is a `Kink`: a ReLU, leaky or not."""
    operands = network.operands(node)
    if len(operands) != 1 or network.shapes.get(node) != network.shapes.get(operands[0]):
        return None
    probe = torch.tensor([-30.0, -7.0, -1.0, 1.0, 7.0, 30.0], dtype=torch.float64)
    try:
        (made,) = network.run({operands[0]: probe}, [node])
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    if not isinstance(made, Tensor) or made.shape != probe.shape:
        return None
    slopes = made / probe
    flat = bool((slopes[:3] == slopes[0]).all() and (slopes[3:] == slopes[3]).all())
    return Kink(float(slopes[3]), float(slopes[0])) if flat and float(slopes[3]) > 0 else None


@dataclass(frozen=True)
class AddedShift:
    """A parameter that is added to every place of a tensor, so that its gradient is the sum of the signals there."""

    name: str
    axis: int

    def sums(self, signal: Tensor) -> Tensor:
        """[n, channels]: the signals of each example, summed over places."""
        return signal.movedim(self.axis, 1).flatten(2).sum(2) if signal.ndim > 2 else signal


@dataclass(eq=False)
class Signals:
    """Values and error signals of a network's nodes, as far as they are known.

    Attributes:
        values: of nodes, for masks and for products of two unknowns.
        known: ∂loss/∂node.
    """

    network: Network
    values: dict[Node, Tensor] = field(default_factory=dict)
    known: dict[Node, Tensor] = field(default_factory=dict)
    _kinks: dict[Node, Kink | None] = field(default_factory=dict)

    def kink(self, node: Node) -> Kink | None:
        """`kink`, once a node."""
        if node not in self._kinks:
            self._kinks[node] = kink(self.network, node)
        return self._kinks[node]

    def at(self, node: Node) -> Tensor | None:
        """The signal at a node, from those of all that is made of it; `None` where one of them is not known."""
        if node in self.known:
            return self.known[node]
        total: Tensor | None = None
        for user in self.network.users(node):
            above = self.at(user)
            part = None if above is None else self.back(user, node, above)
            if part is None:
                return None
            total = part if total is None else total + part
        if total is not None:
            self.known[node] = total
        return total

    def back(self, user: Node, node: Node, signal: Tensor) -> Tensor | None:
        """What a signal at `user` is at `node`, of which it is made; `None` where that depends on what is not known."""
        operands = self.network.operands(user)
        given = {n: self.values[n] for n in operands if n in self.values}
        if len(given) < len(operands):
            bent = self.kink(user)
            if bent is not None and user in self.values:
                given[node] = bent.argument(self.values[user])
        if len(given) == len(operands):
            return self._slope(user, node, given, signal)
        probes = [self._slope(user, node, self._probed(operands, given, seed), signal) for seed in (0, 1)]
        gap = (probes[0] - probes[1]).norm()
        return probes[0] if bool(gap <= AGREE * probes[0].norm()) else None

    def lifted(self, node: Node) -> None:
        """Carries a known signal up through what is affine in each entry, as far as that is the node's one use."""
        while node in self.known:
            users = self.network.users(node)
            if len(users) != 1 or users[0] in self.known:
                return
            user, shape = users[0], self.network.shapes[node]
            operands = self.network.operands(user)
            given = {n: self.values[n] for n in operands if n in self.values and n is not node}
            one, two = (self._probed(operands, given, seed) for seed in (0, 1))
            two = {n: t if n is node else one[n] for n, t in two.items()}
            slope = self._slope(user, node, one, torch.ones(self.network.shapes[user], dtype=torch.float64))
            values = [self.network.run(g, [user])[0] for g in (one, two)]
            moved = slope * (two[node] - one[node])
            even = values[0].shape == shape and bool((values[1] - values[0] - moved).norm() <= AGREE * moved.norm())
            if not even or bool((slope == 0).any()):
                return
            self.known[user] = self.known[node] / slope
            node = user

    def shift(self, node: Node) -> AddedShift | None:
        """A parameter that is added to each place of a node, directly or to a summand that nothing else uses."""
        todo, first = [node], True
        while todo:
            at = todo.pop()
            if not first and len(self.network.users(at)) != 1:
                continue
            first = False
            source = at.args[0] if at.target is operator.getitem else at
            assert isinstance(source, Node)
            for other in source.all_input_nodes:
                name = self.network.parameter(other)
                found = None if name is None else self._added(at, other, name)
                if found is not None:
                    return found
            if at.target is ATEN.add.Tensor:
                todo += self.network.operands(at)
        return None

    def _added(self, node: Node, spot: Node, name: str) -> AddedShift | None:
        held = self.network.constants[spot]
        if held.ndim != 1:
            return None
        given = self._probed(self.network.operands(node), {}, 0)
        (before,) = self.network.run(given, [node])
        (after,) = self.network.run({**given, spot: held + 1}, [node])
        if not bool(((after - before) - 1).abs().max() < 1e-4):
            return None
        axis = 1 if before.ndim > 2 or before.shape[0] == self.network.examples else -1
        return AddedShift(name, axis) if before.shape[axis] == len(held) else None

    def _probed(self, operands: list[Node], given: dict[Node, Tensor], seed: int) -> dict[Node, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        return {
            n: given[n] if n in given else torch.randn(self.network.shapes[n], generator=draw, dtype=torch.float64)
            for n in operands
        }

    def _slope(self, user: Node, node: Node, given: dict[Node, Tensor], signal: Tensor) -> Tensor:
        point = given[node].detach().contiguous().requires_grad_()
        with torch.enable_grad():
            (made,) = self.network.run({**given, node: point}, [user])
            # BatchNorm's backward pass reads the strides of the values for those of the signal.
            return torch.autograd.grad(made, point, signal.reshape(made.shape).contiguous())[0]
