"""Weights that a network computes from parameters before it multiplies with them, wherever in the network."""

import math
from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, fx

from leakgauge.errors import FOREIGN
from leakgauge.tensors import Tensors
from leakgauge.view.axes import fresh, pulled, shape_of
from leakgauge.view.graph import Graph
from leakgauge.view.layer import Told, leaves_of, pulled_back
from leakgauge.view.trace import ancestors, blank, operation, writes

MOST = 2**26  # entries of weights that are solved for


@dataclass(frozen=True, eq=False)
class ComputedWeights(Told):
    """Weights that some parameters stand in, and these in nothing else: what the parameters' gradients are of theirs is
    the derivative of the weights by the parameters."""

    graph: Graph
    nodes: tuple[fx.Node, ...]  # each a weight
    parameters: tuple[str, ...]
    used: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return 1, sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [math.prod(shape_of(node)) for node in self.nodes]

    def split(self, rows: Tensor) -> list[Tensor]:
        """What is of each weight."""
        return list(rows[0].split(self._sizes))

    @cached_property
    def _run(self) -> tuple[Tensors, list[Tensor]]:
        task, leaves = leaves_of(self.graph, self.used)
        with torch.enable_grad():
            return leaves, self.graph.trace.evaluate([*self.nodes], task, blank(task, 1), instead={})

    @property
    def names(self) -> tuple[str, ...]:
        """The largest parameter's of each, with a number where it is not the first to be called so."""
        found, sizes = list[str](), self.graph.task.parameters
        for node in self.nodes:
            name = max(
                (k for k in self.parameters if k in self.graph.colours.parameters[node]), key=lambda k: sizes[k].numel()
            )
            found.append(name if name not in found else f"{name}_{len(found)}")
        return tuple(found)

    @property
    def values(self) -> list[Tensor]:
        """The weights as the parameters make them."""
        return [value.detach() for value in self._run[1]]

    def gradients(self, gradient: Float[Tensor, "1 n"]) -> Tensors:
        leaves, made = self._run
        return pulled_back(made, leaves, self.split(gradient))


def computed_weights(graph: Graph, taken: Set[str]) -> tuple[ComputedWeights, ...]:
    """Those that the gradients of their parameters determine, of parameters that are not `taken`; none where vectors
    alone are computed."""
    data, parameters = graph.colours.data, graph.colours.parameters
    given = (n for node in graph.trace.code.graph.nodes if node in data & graph.forward for n in node.all_input_nodes)
    met = dict[fx.Node, fx.Node]()  # what a weight is a view of, and the weight; several views of one are that one
    for node in (n for n in given if n not in data and parameters[n]):
        base = pulled(node, fresh(shape_of(node)))[0]
        plain = base.op == "placeholder" or operation(node) == "t" or met.get(base, node) is not node
        met[base] = base if plain else node
    together = dict[frozenset[str], list[fx.Node]]()
    for node in met.values():
        names, nodes = parameters[node], [node]
        for other in [k for k in together if k & names]:
            names, nodes = names | other, [*together.pop(other), *nodes]
        together[names] = nodes
    determined = list[ComputedWeights]()
    for names, nodes in together.items():
        if any(node.op == "placeholder" for node in nodes) or names & taken:
            continue
        inside = frozenset[fx.Node]().union(*(ancestors(node, lambda n: bool(parameters[n])) for node in nodes))
        users = {u for n in inside.difference(nodes) for u in n.users if u in graph.forward}
        elsewhere = not users <= inside or not inside.isdisjoint(graph.trace.penalised)
        sent = sum(graph.task.parameters[k].numel() for k in names)
        own = tuple(k for k in graph.task.parameters if k in names)
        found = ComputedWeights(graph, tuple(nodes), own, own)
        if elsewhere or any(map(writes, inside)) or not found.shape[1] <= min(sent, MOST):
            continue
        with suppress(*FOREIGN):  # what has no derivative, say
            determined += [found] if found.determined else []
    matrices = (n for one in determined for n in one.nodes if len(shape_of(n)) > 1)
    return tuple(determined) if any(matrices) else ()
