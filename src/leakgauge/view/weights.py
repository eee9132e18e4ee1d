"""Weights that a network computes from parameters before it multiplies with them, wherever in the network."""

from collections.abc import Set
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, fx

from leakgauge.errors import FOREIGN
from leakgauge.tensors import Tensors
from leakgauge.view.axes import fresh, pulled, shape_of
from leakgauge.view.graph import Graph
from leakgauge.view.layer import Effective, leaves_of, pulled_back
from leakgauge.view.trace import ancestors, blank, writes

MOST = 2**26  # entries of weights that are solved for


@dataclass(frozen=True, eq=False, kw_only=True)
class ComputedWeights(Effective):
    """Weights that some parameters stand in, and these in nothing else: together the bias of a layer that is given
    nothing."""

    leaves: Tensors  # the parameters
    made: list[Tensor]  # what they make of each weight

    @staticmethod
    def of(graph: Graph, nodes: tuple[fx.Node, ...], names: tuple[str, ...]) -> "ComputedWeights":
        task, leaves = leaves_of(graph, names)
        with torch.enable_grad():
            made = graph.trace.evaluate([*nodes], task, blank(task, 1), instead={})
        bias = torch.cat([value.detach().flatten() for value in made])
        place = graph, (), nodes[0], bias.new_zeros(len(bias), 0), bias, True, names, names, ()
        return ComputedWeights(*place, nodes=nodes, leaves=leaves, made=made)

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        return pulled_back(self.made, self.leaves, self._split(gradient))

    def tensors(self, name: str, gradient: Float[Tensor, "units d1"]) -> Tensors:
        parts = zip(self._split(gradient), self.made, strict=True)
        return {name + f"_{k}" * (k > 0): part.view(value.shape) for k, (part, value) in enumerate(parts)}

    @property
    def whole(self) -> bool:
        return self.entrywise and len(self.nodes) == 1 == len(self.used)

    def _split(self, rows: Float[Tensor, "units d1"]) -> list[Tensor]:
        return [*rows[:, 0].split([value.numel() for value in self.made])]


def computed_weights(graph: Graph, taken: Set[str]) -> tuple[ComputedWeights, ...]:
    """Those that the gradients of their parameters determine, of parameters that are not `taken`; none where vectors
    alone are computed."""
    data, parameters = graph.colours.data, graph.colours.parameters
    given = (n for node in graph.trace.code.graph.nodes if node in data & graph.forward for n in node.all_input_nodes)
    met = dict.fromkeys(graph.same[n] for n in given if n not in data and parameters[n])
    together = dict[frozenset[str], list[fx.Node]]()
    for node in met:
        names, nodes = parameters[node], [node]
        for other in [k for k in together if k & names]:
            names, nodes = names | other, [*together.pop(other), *nodes]
        together[names] = nodes
    found = list[ComputedWeights]()
    for names, nodes in together.items():
        inside = frozenset[fx.Node]().union(*(ancestors(node, lambda n: bool(parameters[n])) for node in nodes))
        users = {graph.same[u] for n in inside.difference(nodes) for u in n.users if u in graph.forward}
        elsewhere = not users <= inside or not inside.isdisjoint(graph.trace.penalised) or names & taken
        own = any(pulled(n, fresh(shape_of(n)))[0].op == "placeholder" for n in nodes) or any(map(writes, inside))
        sent = sum(graph.task.parameters[k].numel() for k in names)
        if elsewhere or own or sum(n.meta["val"].numel() for n in nodes) > min(sent, MOST):
            continue
        with suppress(*FOREIGN):  # what has no derivative, say
            one = ComputedWeights.of(graph, tuple(nodes), tuple(k for k in graph.task.parameters if k in names))
            found += [one] if one.determined else []
    return tuple(found) if any(value.ndim > 1 for one in found for value in one.made) else ()
