"""A network's layers as their gradients have them, and values inside it where others are known."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.fx import Node

from leakgauge.batch import Batch
from leakgauge.task import Task
from leakgauge.view.axes import RESHAPED, Atom, atoms, shape_of
from leakgauge.view.graph import Graph, OuterSum, traced
from leakgauge.view.layer import single_numbers
from leakgauge.view.trace import FILLED, ROUNDED, ancestors, operation, probe


@dataclass(frozen=True, eq=False)
class Unfolding:
    """Which pixels of a hidden map [channels, pixels] each place of a layer sees."""

    # pixel of each offset of each place; `pixels` itself stands for padding, which is zero
    index: Int[Tensor, "places offsets"]
    pixels: int  # of the map
    channels: int  # of the map
    last: bool = False  # whether the hidden tensor has its channels behind its pixels; so do then the layer's columns

    @staticmethod
    def of(entries: Int[Tensor, "places columns"], shape: Sequence[int]) -> "Unfolding":
        """From the entry of a hidden tensor of that shape that each column of each place is; −1 for padding. Channels
        are the first axis, or the last one, of which all columns of an offset see one pixel."""
        places, columns = entries.shape
        size = math.prod(shape)
        for channels, last in ((shape[0], False), (shape[-1], True)):
            if columns % channels:
                continue
            offsets, pixels = columns // channels, size // channels
            split = entries.view(places, offsets, channels) if last else entries.view(places, channels, -1).mT
            seen, step = split[..., 0], 1 if last else pixels
            every = torch.where(seen[..., None] < 0, -1, seen[..., None] + step * torch.arange(channels))
            pixel = seen // channels if last else seen
            if torch.equal(split, every) and bool((pixel < pixels).all()):
                return Unfolding(torch.where(seen < 0, pixels, pixel), pixels, channels, last)
        return Unfolding(torch.where(entries < 0, size, entries), size, 1)

    @property
    def places(self) -> int:
        """How many rows one example gives."""
        return len(self.index)

    @property
    def columns(self) -> int:
        return self.index.shape[1] * self.channels

    @property
    def cover(self) -> Float[Tensor, " pixels"]:
        """How many places see each pixel."""
        return torch.bincount(self.index.flatten(), minlength=self.pixels + 1)[: self.pixels].double()

    @property
    def overlap(self) -> int:
        """Most offsets that two neighbouring places share: without any, rows say nothing of each other."""
        near = itertools.pairwise(set(row) for row in self.index.tolist())
        return max((len((a & b) - {self.pixels}) for a, b in near), default=0)

    def only(self, used: Tensor) -> "Unfolding":
        return Unfolding(self.index[used], self.pixels, self.channels, self.last)

    def matrix(self, gradient: Float[Tensor, "filters columns"]) -> Float[Tensor, "filters columns"]:
        """A layer's gradient with its columns in the order of `rows`."""
        return gradient if self.last else gradient.view(len(gradient), self.channels, -1).transpose(1, 2).flatten(1)

    def rows(self, maps: Float[Tensor, "n c pixels"]) -> Float[Tensor, "n places columns"]:
        """What the layer multiplies, offsets before channels."""
        return torch.cat([maps, maps.new_zeros(*maps.shape[:2], 1)], 2).transpose(1, 2)[:, self.index].flatten(2)

    def maps(self, rows: Float[Tensor, "n places columns"]) -> Float[Tensor, "n c pixels"]:
        """The adjoint of `rows`: what the places say of each pixel, summed."""
        out = rows.new_zeros(len(rows), self.pixels + 1, self.channels)
        out.index_add_(1, self.index.flatten(), rows.reshape(len(rows), -1, self.channels))
        return out[:, : self.pixels].transpose(1, 2)

    def design(self, signal: Float[Tensor, "n places filters"]) -> Float[Tensor, "equations unknowns"]:
        """What the layer's gradient is of one channel of its input: [filters × offsets, examples × pixels]."""
        filters, offsets = signal.shape[2], self.index.shape[1]
        made = signal.new_zeros(filters, offsets, len(signal), self.pixels + 1)
        for k in range(offsets):
            made[:, k].index_add_(2, self.index[:, k], signal.permute(2, 0, 1))
        return made[..., : self.pixels].reshape(filters * offsets, -1)

    def of_hidden(self, hidden: Float[Tensor, "n *shape"]) -> Float[Tensor, "n c pixels"]:
        if self.last:
            return hidden.reshape(len(hidden), self.pixels, self.channels).transpose(1, 2)
        return hidden.reshape(len(hidden), self.channels, self.pixels)

    def hidden(self, maps: Float[Tensor, "n c pixels"], shape: Sequence[int]) -> Float[Tensor, "n *shape"]:
        """`of_hidden` back."""
        return (maps.transpose(1, 2) if self.last else maps).reshape(len(maps), *shape)


class Centring(Enum):
    """Over which rows each filter's signals sum to nothing, by a normalisation behind the layer."""

    NONE = "none"
    BATCH = "batch"
    EXAMPLE = "example"


@dataclass(frozen=True, eq=False)
class Layer:
    """A weight whose gradient is one sum of outer products of error signals with rows of a hidden tensor."""

    weight: str  # its name in the update
    product: OuterSum  # in the graph
    hidden: Node  # what it reads, before its entries are put in another order
    unfolding: Unfolding  # from the hidden tensor to its rows
    used: Bool[Tensor, " places"]  # places that some error signal can reach
    centring: Centring  # of the signals

    @property
    def output(self) -> Node:
        """The error signals at what it answers."""
        return self.product.terms[0].signal.node

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of(self.hidden)[1:]

    def matrix(self, gradient: Tensor) -> Float[Tensor, "filters columns"]:
        """The weight's gradient, a row a filter, columns in the order of the unfolding."""
        return self.unfolding.matrix(self.product.matrices(gradient)[0])

    def centred(self, rows: Float[Tensor, "n places columns"]) -> Float[Tensor, "n places columns"]:
        """Rows less their means over what the signals sum to nothing over."""
        if self.centring is Centring.NONE:
            return rows
        return rows - rows.mean(1 if self.centring is Centring.EXAMPLE else (0, 1), keepdim=True)

    def hidden_of(self, maps: Float[Tensor, "n c pixels"]) -> Tensor:
        return self.unfolding.hidden(maps, self.shape)


@dataclass(frozen=True, eq=False)
class Inside:
    """The graph of a batch's gradient."""

    graph: Graph
    task: Task  # its parameters give the precision
    examples: int  # in the batch
    layers: tuple[Layer, ...]  # in the order in which they run

    @staticmethod
    def of(task: Task, examples: int) -> "Inside":
        """In float64. Raises as `traced` does."""
        graph = traced(task)
        bare = Inside(graph, graph.double, examples, ())
        unclear = set(bare.graph.unexplained)
        own = [p for p in bare.graph.products if p.weight not in unclear and _readable(p)]
        order = {node: k for k, node in enumerate(bare.graph.trace.code.graph.nodes)}
        own.sort(key=lambda p: [order[o.node] for t in p.terms for o in (t.activation,) if o is not None])
        sent = replace(bare, examples=2).run([p.terms[0].signal.node for p in own], {}, probe(bare.task, 2))
        found = [bare._layer(p, signal) for p, signal in zip(own, sent, strict=True)]
        return replace(bare, layers=tuple(one for one in found if one is not None))

    def to(self, dtype: torch.dtype) -> "Inside":
        return replace(self, task=self.task.to(torch.empty((), dtype=dtype)))

    @property
    def inputs(self) -> Node:
        return self.graph.trace.nodes["inputs"]

    def run(self, wanted: Sequence[Node], given: Mapping[Node, Tensor], batch: Batch | None = None) -> list[Tensor]:
        """Values of nodes where some are given; what needs the examples is of `batch`, or of random ones."""
        batch = probe(self.task, self.examples) if batch is None else batch
        return self.graph.trace.evaluate(list(wanted), self.task, batch, given=given)

    def open(self, node: Node, given: Iterable[Node]) -> bool:
        """Whether a node depends on the examples otherwise than through those that are given."""
        colours, seen, todo = self.graph.colours, set(given), [node]
        leaves = (self.inputs, self.graph.trace.nodes["labels"])
        while todo:
            at = todo.pop()
            if at in leaves:
                return True
            if at in seen or (at not in colours.data and at not in colours.behind):
                continue
            seen.add(at)
            below = at.args[0] if at.args else None
            first = isinstance(below, Node) and operation(at) == "getitem" and at.args[1] == 0
            if isinstance(below, Node) and first and operation(below) == "convolution_backward":
                todo += [n for k, n in enumerate(below.args) if isinstance(n, Node) and k != 1]  # not what was read
            elif operation(at) not in FILLED:
                todo += at.all_input_nodes
        return False

    def value_shape(self, node: Node) -> tuple[int, ...]:
        return tuple(map(self.graph.sized(self.examples), shape_of(node)))

    def signals(self, product: OuterSum, value: Tensor) -> Float[Tensor, "n places filters"]:
        """Error signals of a product, a row an example and place."""
        term = product.terms[0]
        found = self.graph.matrices(term, term.signal, value, self.examples)[0]
        return found.view(self.examples, -1, found.shape[1])

    def output_of(self, layer: Layer, signals: Float[Tensor, "n used filters"]) -> Tensor:
        """Signals at the used places as a value of the layer's output."""
        own, (rows, outputs) = atoms(layer.product.terms[0].signal.dims), _axes(layer.product)
        order, sized = [*rows, *outputs], self.graph.sized(self.examples)
        full = signals.new_zeros(len(signals), len(layer.used), signals.shape[2])
        full[:, layer.used] = signals
        split = full.reshape([sized(a.length) for a in order]).permute([order.index(a) for a in own])
        return split.reshape(self.value_shape(layer.output))

    def _layer(self, product: OuterSum, signal: Tensor) -> Layer | None:
        one, two, term = replace(self, examples=1), replace(self, examples=2), product.terms[0]
        assert term.activation is not None
        assert product.weight is not None
        node, (rows, _) = term.activation.node, _axes(product)
        count, shape = self.graph.trace.examples, shape_of(node)
        views = (n for n in (node, *node.users) if operation(n) in RESHAPED or n is node)  # of one long row, say
        whole = next((n for n in views if shape_of(n)[:1] == (count,)), None)
        if whole is None or not rows or rows[0].length % count:
            return None
        if {*rows, *(a for a, kind in term.kinds if kind == "activation")} != set(atoms(term.activation.dims)):
            return None
        hidden, places = next(two._sources(whole), (whole, torch.arange(1, math.prod(shape) // count + 1)))
        entries = self.graph.matrices(term, term.activation, places.view(one.value_shape(node)), 1)[0]
        sent = two.signals(product, signal)
        size = sent.abs().sum((0, 1)).clamp_min(1e-300)
        centring = Centring.NONE
        if float((sent.sum((0, 1)).abs() / size).max()) < 1e-6:
            alone = (sent.sum(1).abs() / sent.abs().sum(1).clamp_min(1e-300)).max()
            centring = Centring.EXAMPLE if float(alone) < 1e-6 else Centring.BATCH
        unfolding = Unfolding.of(entries.long() - 1, shape_of(hidden)[1:])
        return Layer(product.weight, product, hidden, unfolding, sent.abs().amax((0, 2)) > 0, centring)

    def _sources(self, node: Node) -> Iterator[tuple[Node, Int[Tensor, " numbers"]]]:
        """Tensors whose every number a node holds, in whatever places, and these; the farthest first."""
        base = self.graph.bases.get(node, node)
        between = ancestors(node, lambda n: self.graph.bases.get(n) is base) | {base}
        for one in dict.fromkeys(self.graph.same[n] for n in self.graph.trace.code.graph.nodes if n in between):
            places = None if one is node else self._places(one, node)
            if places is not None and len(places[places > 0].unique()) == math.prod(shape_of(one)[1:]):
                yield one, places

    def _places(self, base: Node, node: Node) -> Int[Tensor, " numbers"] | None:
        """Which number of a tensor, from 1 on, each of a node is in every example, 0 for a zero; `None` for others."""
        value = base.meta.get("val")
        shape = shape_of(base) if isinstance(value, Tensor) and value.is_floating_point() else ()
        numbers = math.prod(shape[1:])
        if not numbers or shape[:1] != (self.graph.trace.examples,) or base in self.graph.trace.nodes.values():
            return None

        def read(row: Tensor) -> Tensor:
            return self.run([node], {base: row.view(self.examples, *shape[1:])})[0].flatten()

        found = single_numbers(read, self.examples * numbers, ROUNDED)
        if found is None or not bool((found[1] * (1 - found[1])).abs().max() <= ROUNDED):
            return None
        each = ((found[0] + 1) * found[1].round().long()).view(self.examples, -1)
        others = each[:1] + numbers * torch.arange(self.examples)[:, None] * (each[:1] > 0)
        return each[0] if torch.equal(each, others) else None


def _readable(product: OuterSum) -> bool:
    term = product.terms[0]
    return (
        product.weight is not None
        and len(product.terms) == 1
        and term.activation is not None
        and not term.activation.hot
        and term.signal.windows is None
        and product.shape[0] == 1
    )


def _axes(product: OuterSum) -> tuple[list[Atom], list[Atom]]:
    """Axes of examples and places, and those of the filters."""
    kinds = dict(product.terms[0].kinds)
    rows = [a for a in atoms(product.terms[0].signal.dims) if a not in kinds]
    return rows, [a for a in kinds if kinds[a] == "signal"]
