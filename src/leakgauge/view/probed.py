"""Linear layers that a network comes to as examples show it, where no product of its gradient is one.

Weights along edges, rows that are sorted, scaled or copied by what the batch holds, a line for every entry: the graph
has no matrix there. But z is an affine map of the input, example by example, as random ones show, so that one weight
and bias U stand for it, read off at single steps away from one input. What the parameters' gradients make of the
layer's is the derivative of U.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor, fx

from leakgauge.batch import Batch
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.graph import Graph
from leakgauge.view.layer import Effective
from leakgauge.view.plain import MOST, between, by_rows, determined, enough, numbers_of
from leakgauge.view.trace import probe

ROUNDED = 1e-11
"""Relative error in double precision up to which two values are the same."""
STEP = 0.25
"""Of the data's range, how far single entries are moved from its middle."""
ENTRIES = 2**24
"""That are computed of one node at once."""
NEAR = 1e-9
"""Relative error of the layer where the tensors before it are extreme."""
TRIED, EXAMPLES = 32, 6
"""Stretches of the network that are tried, the first ones, and examples that they are tried on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Probed(Effective):
    """A layer that no product shows.

    Attributes:
        inputs: normalised ones that are tried: one, and for each of its entries the same with that entry moved.
        steps: how far each is moved.
    """

    inputs: Float[Tensor, "d1 *shape"]
    steps: Float[Tensor, " d"]

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """The derivative of Σ_a ⟨δ_a, z(x_a)⟩ by the parameters, where Σ_a δ_a ⊗ (x_a, 1) over the tried inputs is the
        gradient of the layer."""
        body, total = gradient[:, :-1], gradient[:, -1:]
        moved = (body - total * self.inputs[0].flatten()) / self.steps
        signals = torch.cat([total - moved.sum(1, keepdim=True), moved], 1).T
        with torch.enable_grad():
            leaves = {k: self.graph.double.parameters[k].detach().requires_grad_() for k in self.used}
            task = replace(self.graph.double, parameters={**self.graph.double.parameters, **leaves})
            made = _in_parts(self.graph, task, self.output, self.inputs)
            sums = [(z * d).sum() for z, d in zip(made, signals.split([len(z) for z in made]), strict=True)]
            found = torch.autograd.grad(sum(sums), list(leaves.values()), create_graph=True, allow_unused=True)
        none = (torch.zeros_like(leaf) for leaf in leaves.values())
        return {k: z if g is None else g for k, g, z in zip(leaves, found, none, strict=True)}


def probed_layer(graph: Graph) -> Effective | None:
    """The last layer that reads the input, as far as examples show one."""
    if graph.task.data.is_text:
        return None
    task = graph.double
    read = [n for n in graph.trace.code.graph.nodes if n in graph.forward and n in graph.colours.data]
    real = [n for n in read if by_rows(graph, n) and n.meta["val"].is_floating_point()]
    small = [n for n in real if numbers_of(graph, n) <= MOST // math.prod(task.data.shape)]
    own = (n for n in small if enough(graph, math.prod(task.data.shape), n))
    whole = (n for n in own if graph.colours.parameters[n] == between(graph, (graph.inputs,), n))
    for node in reversed(_affine(graph, task, list(islice(whole, TRIED)))):
        before = [n for n in small[: small.index(node)] if _bends(graph, n)]
        if (layer := _layer(graph, task, node, _affine(graph, task, before))) is not None:
            return layer
    return None


def _values(graph: Graph, task: Task, nodes: list[fx.Node], inputs: Tensor) -> list[Float[Tensor, "k units"]]:
    """What nodes are at normalised inputs, for the parameters of a task."""
    batch = Batch(inputs, torch.zeros(len(inputs), dtype=torch.long))
    made = graph.trace.evaluate(nodes, task, batch, given={graph.inputs: inputs}, instead={})
    return [value.reshape(len(inputs), -1) for value in made]


def _in_parts(graph: Graph, task: Task, node: fx.Node, inputs: Tensor) -> list[Float[Tensor, "k units"]]:
    """Of one node, as many examples at once as memory is asked for."""
    near = (n.meta.get("val") for n in (node, *node.all_input_nodes))
    largest = max(v.numel() for v in near if isinstance(v, Tensor)) // graph.trace.examples + 1
    parts = inputs.split(max(1, ENTRIES // largest))
    return [made for part in parts for made in _values(graph, task, [node], part)]


def _layer(graph: Graph, task: Task, node: fx.Node, before: list[fx.Node]) -> Effective | None:
    """The layer that ends at a node, if it is one where those tensors before it are extreme, too."""
    names = tuple(sorted(graph.colours.parameters[node]))
    data = task.data
    middle = torch.full((1, *data.shape), (data.low + data.high) / 2, dtype=torch.float64)
    steps = STEP * data.range * torch.eye(middle.numel(), dtype=torch.float64).view(-1, *data.shape)
    inputs = data.normalise(torch.cat([middle, middle + steps]))
    moved = (inputs[1:] - inputs[:1]).flatten(1).diagonal()

    def map_of(one: fx.Node) -> tuple[Tensor, Tensor]:
        made = torch.cat(_in_parts(graph, task, one, inputs))
        weight = ((made[1:] - made[:1]) / moved[:, None]).T
        return weight, made[0] - weight @ inputs[0].flatten()

    with torch.no_grad():
        weight, bias = map_of(node)
        for one in before:
            ends = map_of(one)[0].view(-1, *data.shape) > 0
            corners = data.normalise(torch.where(torch.cat([ends, ~ends]), data.high, data.low).double())
            made, wanted = torch.cat(_in_parts(graph, task, node, corners)), corners.flatten(1) @ weight.T + bias
            if float((made - wanted).abs().max()) > NEAR * float(wanted.abs().max()):
                return None
    place = graph, (graph.inputs,), node, weight, bias
    found = (Probed(*place, moves, names, names, (), inputs=inputs, steps=moved) for moves in (True, False))
    return next((layer for layer in found if determined(layer)), None)


def _bends(graph: Graph, node: fx.Node) -> bool:
    """Whether something that is no affine map by its name is made of a tensor: it shows where that one is extreme."""
    return any(u in graph.forward and graph.bases.get(u) is u for u in node.users)


def _affine(graph: Graph, task: Task, nodes: list[fx.Node]) -> list[fx.Node]:
    """Those of some tensors that are affine maps of the input, example by example, as random ones show."""
    one, two = (probe(task, EXAMPLES, seed).inputs for seed in (0, 1))
    one[0], one[1] = task.data.low, task.data.high  # where a bound of the network would tell
    one[0].view(-1)[0] = task.data.high  # of nothing at all there may be no scale
    half, found = EXAMPLES // 2, list[fx.Node]()
    batches = one, two, (one + two) / 2, torch.cat([two[:half], one[half:]])
    with torch.no_grad():
        values = (_values(graph, task, nodes, task.data.normalise(x)) for x in batches)
        for node, first, second, middle, mixed in zip(nodes, *values, strict=True):
            error = ROUNDED * max(float(first.abs().max()), float(second.abs().max()))
            straight = ((first + second) / 2 - middle).abs().max() <= error
            apart = (torch.cat([second[:half], first[half:]]) - mixed).abs().max() <= error
            found += [node] if bool(straight) and bool(apart) else []
    return found
