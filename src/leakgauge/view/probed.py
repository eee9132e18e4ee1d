"""Linear layers that a network comes to as examples show it, where no product of its gradient is one.

Weights along edges, rows that are sorted, scaled or copied by what the batch holds, a line for every entry: the graph
has no matrix there. But z is an affine map of the input, example by example, as random ones show, so that one weight
and bias U stand for it, read off at single steps away from one of them. What the parameters' gradients make of the
layer's is the derivative of U.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from jaxtyping import Float
from torch import Tensor, fx

from leakgauge.errors import FOREIGN
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.axes import shape_of
from leakgauge.view.graph import SCALES, Graph
from leakgauge.view.layer import Effective, leaves_of, pulled_back
from leakgauge.view.plain import MOST, between, by_rows, enough, numbers_of, of_rows
from leakgauge.view.trace import ancestors, blank, probe

ROUNDED = 1e-11  # relative error in double precision up to which two values are the same
STEP = 0.25  # of the data's range, how far single entries are moved from its middle
ENTRIES = 2**26  # that are held at once of the tensors on the way to a node
HELD = 2**27  # the same at most of those that parameters have a part in, for a derivative by them: 1 GiB
NEAR = 1e-9  # relative error of the layer where the tensors before it are extreme
TRIED, EXAMPLES = 32, 6  # stretches of the network that are tried, the first ones, and examples that they are tried on


@dataclass(frozen=True, eq=False)
class Range:
    """What the numbers of an example, as the model is called with it, are between; or those of a tensor inside."""

    graph: Graph
    given: fx.Node
    low: Float[Tensor, " d"]  # low, high: in one row
    high: Float[Tensor, " d"]

    @staticmethod
    def of(graph: Graph) -> Range:
        """By the data's format."""
        data = graph.task.data
        ends = (torch.full((1, *data.shape), end, dtype=torch.float64) for end in (data.low, data.high))
        return Range(graph, graph.inputs, *(data.normalise(end).flatten() for end in ends))

    @staticmethod
    def inside(graph: Graph, given: fx.Node) -> Range:
        """Between −1 and 1."""
        ones = torch.ones(numbers_of(graph, given), dtype=torch.float64)
        return Range(graph, given, -ones, ones)

    def at(self, share: Tensor | float) -> Tensor:
        """Values at shares of the way from the lowest to the highest."""
        return self.low + (self.high - self.low) * share

    def values(self, task: Task, nodes: list[fx.Node], rows: Float[Tensor, "k d"]) -> list[Float[Tensor, "k units"]]:
        """What nodes are where the input has these rows, for the parameters of a task."""
        given = {self.given: of_rows(self.graph, self.given, rows)}
        made = self.graph.trace.evaluate(nodes, task, blank(task, len(rows)), given=given, instead={})
        return [value.reshape(len(rows), -1) for value in made]

    def on_the_way(self, node: fx.Node, among: Callable[[fx.Node], bool]) -> int:
        """How many numbers some tensors from the input to a node hold for each row."""
        way = ancestors(node, lambda n: among(n) and n is not self.given)
        made = (v for n in way if isinstance(v := n.meta.get("val"), Tensor))
        return sum(v.numel() for v in made) // self.graph.trace.examples + 1

    def in_parts(self, task: Task, node: fx.Node, rows: Float[Tensor, "k d"]) -> list[Tensor]:
        """One node's values: of so many rows at once that what is made on the way stays small."""
        each = self.on_the_way(node, lambda n: n in self.graph.colours.data)
        return [self.values(task, [node], part)[0] for part in rows.split(max(1, ENTRIES // each))]


@dataclass(frozen=True, eq=False, kw_only=True)
class Probed(Effective):
    """A layer that no product shows."""

    within: Range  # what it reads is between
    tried: Float[Tensor, "d1 d"]  # rows: one, and for each of its entries the same with that entry moved
    steps: Float[Tensor, " d"]  # how far each is moved

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """The derivative of Σ_a ⟨δ_a, z(h_a)⟩ by the parameters, where Σ_a δ_a ⊗ (h_a, 1) over the tried rows is the
        gradient of the layer."""
        body, total = gradient[:, :-1], gradient[:, -1:]
        moved = (body - total * self.tried[0]) / self.steps
        signals = torch.cat([total - moved.sum(1, keepdim=True), moved], 1).T
        leaves, made = self._run
        return pulled_back(made, leaves, signals.split([len(z) for z in made]))

    @property
    def still(self) -> bool:
        """Whether no parameter's gradient says anything of that of the bias."""
        alone = torch.zeros(len(self.weight), self.weight.shape[1] + 1, dtype=torch.float64)
        alone[:, -1] = torch.randn(len(alone), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        alone[:, -1] -= alone[:, -1].mean() * self.balanced
        return all(float(g.abs().max()) <= NEAR for g in self.gradients(alone).values())

    @cached_property
    def _run(self) -> tuple[Tensors, list[Tensor]]:
        """The parameters, and what the output is for the tried rows."""
        task, leaves = leaves_of(self.graph, self.used)
        with torch.enable_grad():
            return leaves, _seen(self.within.in_parts(task, self.output, self.tried), balanced=self.balanced)


def probed_layer(graph: Graph) -> Effective | None:
    """The last layer that reads the model's input, as far as examples show one."""
    if graph.task.data.is_text:
        return None
    task, width, below, given = graph.double, numbers_of(graph, graph.inputs), graph.dominators, graph.inputs
    behind = [n for n in below if given in below[n] and n is not given]
    real = [n for n in behind if by_rows(graph, n) and n.meta["val"].is_floating_point()]
    small = [n for n in real if numbers_of(graph, n) <= MOST // width]
    tall = (n for n in small if enough(graph, given, n))
    whole = (n for n in tall if graph.colours.parameters[n] == between(graph, (given,), n))
    if not (tried := list(islice(whole, TRIED))):
        return None
    within = Range.of(graph)
    for node in reversed(_affine(within, task, tried)):
        # What is no affine map by its name and is made of a tensor shows where that one is extreme.
        users = {n: [u for u in n.users if u in graph.forward] for n in small[: small.index(node)]}
        bends = [n for n, after in users.items() if any(graph.bases.get(u) is u for u in after)]
        if (layer := _layer(within, task, node, _affine(within, task, bends))) is not None:
            return layer
    return None


def hidden_layer(
    graph: Graph, sources: tuple[fx.Node, ...], node: fx.Node, *, balanced: bool = False
) -> Effective | None:
    """The layer from a tensor inside to another one, an affine map of it."""
    (given,) = sources
    rows = all(by_rows(graph, n) and n.meta["val"].is_floating_point() for n in (given, node))
    inside = graph.colours.parameters[node] - graph.colours.parameters[given] == between(graph, (given,), node)
    small = rows and numbers_of(graph, node) * numbers_of(graph, given) <= MOST
    if not (small and inside and enough(graph, given, node)):
        return None
    within, draw = Range.inside(graph, given), torch.Generator().manual_seed(0)
    one, two = within.at(torch.rand(2, EXAMPLES, numbers_of(graph, given), generator=draw, dtype=torch.float64))
    every = torch.cat([one, two, (one + two) / 2])
    with torch.no_grad():
        for scale in SCALES:
            (made,) = _seen(within.values(graph.double, [node], every * scale), balanced=balanced)
            first, second, middle = made.chunk(3)
            if bool(((first + second) / 2 - middle).abs().max() > NEAR * made.abs().max()):
                return None
    return _layer(within, graph.double, node, [], balanced=balanced)


def output_layer(graph: Graph, output: fx.Node) -> Effective | None:
    """The layer that makes the outputs, but for what a loss does not see of which the error signals sum to nothing: a
    number that is added to all of an example."""
    signals = {n for p in graph.products for t in p.terms for n in graph.behind(t.signal.node)}
    ends = (n for n in graph.trace.code.graph.nodes if n in signals and shape_of(n) == shape_of(output))
    if (first := next(ends, None)) is None or not by_rows(graph, output):
        return None
    (sent,) = graph.trace.evaluate([first], graph.double, probe(graph.double, 2))
    if bool(sent.reshape(2, -1).sum(1).abs().max() > NEAR * sent.abs().max()):
        return None
    below = [n for n in graph.dominators[output][:-1] if isinstance(n.meta.get("val"), Tensor)]
    layers = (hidden_layer(graph, (given,), output, balanced=True) for given in reversed(below))
    return next((layer for layer in layers if layer is not None), None)


def _seen(made: list[Tensor], *, balanced: bool) -> list[Float[Tensor, "k units"]]:
    """What a loss sees of outputs."""
    return [rows - rows.mean(1, keepdim=True) for rows in made] if balanced else made


def _layer(
    within: Range, task: Task, node: fx.Node, before: list[fx.Node], *, balanced: bool = False
) -> Effective | None:
    """The layer that ends at a node, if it is one where those tensors before it are extreme, too."""
    graph, width = within.graph, len(within.low)
    names = tuple(sorted(graph.colours.parameters[node] - graph.colours.parameters[within.given]))
    trains = within.on_the_way(
        node, lambda n: n in graph.dominators and not graph.colours.parameters[n].isdisjoint(names)
    )
    if trains * (width + 1) > HELD:
        return None
    middle = within.at(torch.tensor(0.5, dtype=torch.float64))[None]
    moved = STEP * (within.high - within.low)
    rows = torch.cat([middle, middle + moved.diag()])

    with torch.no_grad():
        made = torch.cat(_seen(within.in_parts(task, node, rows), balanced=balanced))
        first, slopes = made[0].clone(), made[1:].sub_(made[0]).div_(moved[:, None])
        weight, bias = slopes.T, first - rows[0] @ slopes
        for one in before:
            (least,) = within.values(task, [one], middle)
            ends = (torch.cat(within.in_parts(task, one, rows[1:])) > least).T.unique(dim=0)
            off = size = 0.0
            for some in ends.split(max(1, ENTRIES // (8 * max(weight.shape)))):
                corners = within.at(torch.cat([some, ~some]).double())
                made, wanted = torch.cat(within.in_parts(task, node, corners)), corners @ weight.T + bias
                off = max(off, float((made - wanted).abs().max()))
                size = max(size, float(wanted.abs().max()))
            if off > NEAR * size:
                return None
    place = graph, (within.given,), node, weight, bias
    for moves in (True, False):
        layer = Probed(*place, moves, names, names, (), balanced=balanced, within=within, tried=rows, steps=moved)
        if (moves or layer.still) and layer.determined:
            return layer
    return None


def _affine(within: Range, task: Task, nodes: list[fx.Node]) -> list[fx.Node]:
    """Those of some tensors that are affine maps of another, example by example, as random rows show."""
    draw = torch.Generator().manual_seed(0)
    one, two = torch.rand(2, EXAMPLES, len(within.low), generator=draw, dtype=torch.float64)
    one[0], one[1] = 0, 1  # where a bound of the network would tell
    one[0, 0] = 1  # of nothing at all there may be no scale
    half, found = EXAMPLES // 2, list[fx.Node]()
    batches = one, two, (one + two) / 2, torch.cat([two[:half], one[half:]])
    with torch.no_grad():
        try:
            values = [within.values(task, nodes, within.at(x)) for x in batches]
        except FOREIGN:  # an operation behind some of them does not run in double precision, say
            return [] if len(nodes) < 2 else [n for one in nodes for n in _affine(within, task, [one])]
        for node, first, second, middle, mixed in zip(nodes, *values, strict=True):
            error = ROUNDED * max(float(first.abs().max()), float(second.abs().max()))
            straight = ((first + second) / 2 - middle).abs().max() <= error
            apart = (torch.cat([second[:half], first[half:]]) - mixed).abs().max() <= error
            found += [node] if bool(straight) and bool(apart) else []
    return found
