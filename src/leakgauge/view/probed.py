"""Linear layers that a network comes to as examples show it, where no product of its gradient is one.

Weights along edges, rows that are sorted, scaled or copied by what the batch holds, a line for every entry: the graph
has no matrix there. But z is an affine map of the input or of a hidden tensor, example by example, as random ones show,
so that one weight and bias U stand for it, read off at single steps away from one of them. What the parameters'
gradients make of the layer's is the derivative of U.
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
from leakgauge.view.graph import Graph
from leakgauge.view.layer import Effective, leaves_of, pulled_back
from leakgauge.view.plain import MOST, between, by_rows, enough, numbers_of, of_rows
from leakgauge.view.trace import ancestors, blank, probe

ROUNDED = 1e-11  # relative error in double precision up to which two values are the same
STEP = 0.25  # of the data's range, how far single entries are moved from its middle
ENTRIES = 2**26  # that are held at once of the tensors on the way to a node
HELD = 2**27  # the same at most of those that parameters have a part in, for a derivative by them: 1 GiB
NEAR = 1e-9  # relative error of the layer where the tensors before it are extreme
TRIED, EXAMPLES = 32, 6  # stretches of the network that are tried, the first ones, and examples that they are tried on
SEEN, WIDER = 64, 4.0  # random inputs that show the range of a hidden tensor, and how much wider it may be
BEFORE, BENT = 4, 32
"""Hidden tensors that a stretch may begin with, the nearest ones, and operations in it that are not affine."""


@dataclass(frozen=True, eq=False)
class Range:
    """What the values of a tensor are between."""

    graph: Graph
    node: fx.Node
    low: Float[Tensor, " d"]  # low, high: of one example, in one row
    high: Float[Tensor, " d"]

    @staticmethod
    def of(graph: Graph, node: fx.Node) -> Range:
        """Of the input by the data's format, of a hidden tensor by what random inputs make of it."""
        data, task = graph.task.data, graph.double
        shape = (1, *data.shape)
        ends = (torch.full(shape, end, dtype=torch.float64) for end in (data.low, data.high))
        whole = Range(graph, graph.inputs, *(data.normalise(end).flatten() for end in ends))
        if node is graph.inputs:
            return whole
        seen = data.normalise(probe(task, SEEN).inputs).flatten(1)
        made = torch.cat(whole.in_parts(task, node, seen, lambda part: torch.stack(part.aminmax())))
        low, high = WIDER * made.min().clamp_max(0), WIDER * made.max().clamp_min(0)
        each = seen.new_ones(numbers_of(graph, node))
        return Range(graph, node, low * each, high * each)

    def at(self, share: Tensor | float) -> Tensor:
        """Values at shares of the way from the lowest to the highest."""
        return self.low + (self.high - self.low) * share

    def values(self, task: Task, nodes: list[fx.Node], rows: Float[Tensor, "k d"]) -> list[Float[Tensor, "k units"]]:
        """What nodes are where the tensor has these rows, for the parameters of a task."""
        given = {self.node: of_rows(self.graph, self.node, rows)}
        made = self.graph.trace.evaluate(nodes, task, blank(task, len(rows)), given=given, instead={})
        return [value.reshape(len(rows), -1) for value in made]

    def on_the_way(self, node: fx.Node, among: Callable[[fx.Node], bool]) -> int:
        """How many numbers some tensors from this one to a node hold for each row."""
        way = ancestors(node, lambda n: among(n) and n is not self.node)
        made = (v for n in way if isinstance(v := n.meta.get("val"), Tensor))
        return sum(v.numel() for v in made) // self.graph.trace.examples + 1

    def in_parts(
        self,
        task: Task,
        node: fx.Node,
        rows: Float[Tensor, "k d"],
        keep: Callable[[Tensor], Tensor] = lambda made: made,
    ) -> list[Tensor]:
        """What is kept of one node's values: of so many rows at once that what is made on the way, all of which is held
        meanwhile, stays small."""
        each = self.on_the_way(node, lambda n: n in self.graph.colours.data)
        parts = (self.values(task, [node], part) for part in rows.split(max(1, ENTRIES // each)))
        return [keep(value) for (value,) in parts]


Lost = dict[tuple[fx.Node, tuple[str, ...]], int]
"""Numbers that a layer reads which its parameters' gradients do not determine, by its end and these."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Probed(Effective):
    """A layer that no product shows."""

    within: Range  # what the tensor that it reads is between
    tried: Float[Tensor, "d1 d"]  # rows of that tensor: one, and for each of its entries the same with that entry moved
    steps: Float[Tensor, " d"]  # how far each is moved

    def gradients(self, gradient: Float[Tensor, "units d1"]) -> Tensors:
        """The derivative of Σ_a ⟨δ_a, z(h_a)⟩ by the parameters, where Σ_a δ_a ⊗ (h_a, 1) over the tried rows is the
        gradient of the layer."""
        body, total = gradient[:, :-1], gradient[:, -1:]
        moved = (body - total * self.tried[0]) / self.steps
        signals = torch.cat([total - moved.sum(1, keepdim=True), moved], 1).T
        leaves, made = self._run
        return pulled_back(made, leaves, signals.split([len(z) for z in made]))

    @cached_property
    def _run(self) -> tuple[Tensors, list[Tensor]]:
        """The parameters, and what the output is for the tried rows."""
        task, leaves = leaves_of(self.graph, self.used)
        with torch.enable_grad():
            return leaves, self.within.in_parts(task, self.output, self.tried)


def probed_layer(
    graph: Graph, given: fx.Node, among: frozenset[str] | None = None, lost: Lost | None = None
) -> Effective | None:
    """The last layer that reads a tensor, the model's input or a hidden one, as far as examples show one. `among`:
    parameters that it may have; all by default. `lost`: what is not determined from a nearer tensor, and so not from
    this one unless it holds fewer numbers; what is found to be lost is added."""
    if graph.task.data.is_text:
        return None
    task, width, below = graph.double, numbers_of(graph, given), graph.dominators
    behind = [n for n in below if given in below[n] and n is not given]
    real = [n for n in behind if by_rows(graph, n) and n.meta["val"].is_floating_point()]
    small = [n for n in real if numbers_of(graph, n) <= MOST // width]
    if among is not None:
        bent = [n for n in behind if graph.bases.get(n) is n][BENT:]
        small = small[: next((k for k, n in enumerate(small) if n in bent), len(small))]
    before = graph.colours.parameters[given]
    own = [n for n in small if among is None or among.issuperset(graph.colours.parameters[n] - before)]
    tall = (n for n in own if enough(graph, given, n))
    whole = (n for n in tall if graph.colours.parameters[n] - before == between(graph, (given,), n))
    if not (tried := list(islice(whole, TRIED))):
        return None
    within, lost = Range.of(graph, given), {} if lost is None else lost
    for node in reversed(_affine(within, task, tried)):
        # What is no affine map by its name and is made of a tensor shows where that one is extreme.
        users = {n: [u for u in n.users if u in graph.forward] for n in small[: small.index(node)]}
        bends = [n for n, after in users.items() if any(graph.bases.get(u) is u for u in after)]
        if (layer := _layer(within, task, node, _affine(within, task, bends), lost)) is not None:
            return layer
    return None


def hidden_layers(graph: Graph, left: frozenset[str]) -> list[Effective]:
    """Layers that read hidden tensors, of some parameters whose gradients no product is."""
    below, found, seen = graph.dominators, list[Effective](), set[fx.Node]()
    for name in sorted(left):
        lost: Lost = {}
        used = [n for n in below if name in graph.colours.parameters[n]]
        entries = {m for n in used for m in n.all_input_nodes if m in below and m not in used}
        shared = [n for n in below if entries and all(n in below[e] for e in entries)]
        inside = [n for n in shared if graph.inputs in below[n] and graph.bases.get(n, n) is not graph.inputs]
        starts = [n for n in inside if by_rows(graph, n) and n.meta["val"].is_floating_point()]
        for start in starts[: -BEFORE - 1 : -1]:
            taken = {k for layer in found for k in layer.parameters}
            if name not in taken and start not in seen:
                seen.add(start)
                layer = probed_layer(graph, start, left - taken, lost)
                found += [] if layer is None else [layer]
    return found


def _layer(within: Range, task: Task, node: fx.Node, before: list[fx.Node], lost: Lost) -> Effective | None:
    """The layer that ends at a node, if it is one where those tensors before it are extreme, too."""
    graph, width = within.graph, len(within.low)
    names = tuple(sorted(graph.colours.parameters[node] - graph.colours.parameters[within.node]))
    if lost.get((node, names), width + 1) <= width:
        return None
    trains = within.on_the_way(
        node, lambda n: n in graph.dominators and not graph.colours.parameters[n].isdisjoint(names)
    )
    if trains * (width + 1) > HELD:
        return None
    middle = within.at(torch.tensor(0.5, dtype=torch.float64))[None]
    moved = STEP * (within.high - within.low)
    rows = torch.cat([middle, middle + moved.diag()])

    with torch.no_grad():
        made = torch.cat(within.in_parts(task, node, rows))
        first, slopes = made[0].clone(), made[1:].sub_(made[0]).div_(moved[:, None])
        weight, bias = slopes.T, first - rows[0] @ slopes
        for one in before:
            (least,) = within.values(task, [one], middle)
            ends = torch.cat(within.in_parts(task, one, rows[1:], least.lt)).T.unique(dim=0)
            off = size = 0.0
            for some in ends.split(max(1, ENTRIES // (8 * max(weight.shape)))):
                corners = within.at(torch.cat([some, ~some]).double())
                made, wanted = torch.cat(within.in_parts(task, node, corners)), corners @ weight.T + bias
                off = max(off, float((made - wanted).abs().max()))
                size = max(size, float(wanted.abs().max()))
            if off > NEAR * size:
                return None
    place = graph, (within.node,), node, weight, bias
    found = (Probed(*place, moves, names, names, (), within=within, tried=rows, steps=moved) for moves in (True, False))
    layer = next((layer for layer in found if layer.determined), None)
    if layer is None:
        lost[node, names] = width
    return layer


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
