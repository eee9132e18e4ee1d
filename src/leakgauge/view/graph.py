"""What a network's gradient is made of, whatever words the network is written in.

`traced(task)` follows every parameter's gradient back to sums of outer products. A `OuterSum` is one such sum

    M = Σ over examples and positions of  δ ⊗ a        [blocks, outputs, inputs]

with error signals δ and activations a. Gradients hold it through a linear map that the server knows: the identity for
the weight of a linear layer or a convolution (`OuterSum.weight`), something else where the weight is computed from
parameters (`weight_norm`, a scale, a merged LoRA). Products that read one tensor form a `Group`: q, k and v, the halves
of a weight, a block's convolution and its shortcut. That tensor, `Group.hidden`, is the deepest one of which the
activations are affine maps that depend on parameters alone; a reader that finds it knows all that is above.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN, said
from leakgauge.task import Task
from leakgauge.view.axes import Atom, affine_bases, atoms, cut, model_input, representatives, shape_of
from leakgauge.view.derivatives import plain_operations
from leakgauge.view.products import Colours, Operand, OuterProducts, Term, finished
from leakgauge.view.trace import ROUNDED, TracedGradient, ancestors, draws, probe
from leakgauge.view.tracer import trace

SMALL = 2**21  # numbers that a network makes of the examples that it is traced with, up to which more are tried
FEWER = 4  # so many times fewer entries than a layer that stands for them the parameters may have
SCALES = (1.0, 1e4)  # sizes of the random numbers that show whether an operation is affine


@dataclass(frozen=True, eq=False)
class OuterSum:
    """A sum of outer products in the gradients."""

    node: fx.Node  # the sum in the graph, in axes of its own
    terms: tuple[Term, ...]  # what is summed up: one, or several where a parameter is used several times
    parameters: tuple[str, ...]  # whose gradients hold it
    weight: str | None  # the parameter of which it is the gradient itself; `None` where a map lies between

    @property
    def activation(self) -> Operand | None:
        """Of the only term, or the first; `None` for a plain sum of the error signal."""
        return self.terms[0].activation

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """The tensors that it multiplies with error signals."""
        return tuple(t.activation.node for t in self.terms if t.activation is not None)

    @property
    def slides(self) -> bool:
        """Whether it goes over windows of a tensor, as a convolution does."""
        return any(o is not None and o.windows is not None for t in self.terms for o in (t.signal, t.activation))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks (the groups of a convolution), outputs and inputs of the product as matrices."""
        blocks, outputs, inputs = (math.prod(a.length for a in self._axes(kind)) for kind in _KINDS)
        return blocks, outputs, inputs

    def _axes(self, kind: str) -> list[Atom]:
        return [a for a, k in self.terms[0].kinds if k == kind]

    @property
    def _order(self) -> tuple[list[Atom], list[Atom]]:
        """Axes of the sum in the graph's order, and in that of the matrices."""
        return atoms(self.terms[0].dims), [a for kind in _KINDS for a in self._axes(kind)]

    def matrices(self, value: Tensor) -> Float[Tensor, "blocks outputs inputs"]:
        """The product as matrices, from its value in the graph's axes."""
        own, order = self._order
        return value.reshape([a.length for a in own]).permute([own.index(a) for a in order]).reshape(self.shape)

    def signal(self, value: Tensor, examples: int) -> Tensor:
        """The error signal of the only example that a plain sum is then, from its value in the graph's axes."""
        node, (own, _) = self.terms[0].signal, self._order
        kept = [a for a in atoms(node.dims) if a in own]
        found = value.reshape([a.length for a in own]).permute([own.index(a) for a in kept])
        return found.reshape([s // examples if s % examples == 0 else s for s in shape_of(node.node)])

    def tensor(self, matrices: Float[Tensor, "blocks outputs inputs"]) -> Tensor:
        """The product in the graph's axes, from its matrices."""
        own, order = self._order
        found = matrices.reshape([a.length for a in order]).permute([order.index(a) for a in own])
        return found.reshape([math.prod(a.length for a in axis) for axis in cut(self.terms[0].dims)])


_KINDS = ("both", "signal", "activation")


@dataclass(frozen=True, eq=False)
class Group:
    """Products whose activations are affine maps of the same tensors."""

    hidden: tuple[fx.Node, ...]  # one tensor; several where the terms of a product read several; none for shifts
    products: tuple[OuterSum, ...]  # with a tensor to read, and no shifts
    shifts: tuple[OuterSum, ...] = ()  # plain sums of the error signals of its products: the gradients of their biases


@dataclass(frozen=True, eq=False)
class Graph:
    """Products of all parameters of a task."""

    task: Task
    trace: TracedGradient
    colours: Colours
    products: tuple[OuterSum, ...]
    # parameters whose gradient has another source than `products`, or is written in place where the graph loses it
    unexplained: tuple[str, ...]

    @cached_property
    def double(self) -> Task:
        return self.task.to(torch.empty((), dtype=torch.float64))

    @cached_property
    def bases(self) -> dict[fx.Node, fx.Node]:
        """For every tensor of the forward pass the deepest one of which it is an affine map."""
        return affine_bases(self.trace, self.colours.data - self.colours.behind, self._straight, self._rejoined)

    def _rejoined(self, node: fx.Node) -> fx.Node | None:
        """The nearest tensor through which alone a node depends on examples, where it is an affine map of that: squares
        that cancel, what is divided and multiplied again. Not over layers that are too large to stand for."""
        *_, given = (None, *filter(_is_real, self.dominators.get(node, ())[:-1]))
        if given is None or not _is_real(node):
            return None
        names = self.colours.parameters[node] - self.colours.parameters[given]
        small = math.prod(n.meta["val"].numel() // self.trace.examples for n in (given, node)) <= FEWER * sum(
            self.task.parameters[name].numel() for name in names
        )
        return given if (small or not names) and self._straight(node, [given]) else None

    def _straight(self, node: fx.Node, given: list[fx.Node]) -> bool:
        """Whether an operation is affine in all of some tensors together, as random ones show, small and large, and
        hands on what is no number."""
        values = [n.meta.get("val") for n in (node, *given)]
        if draws(node) or not all(isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex()) for v in values):
            return False
        draw, batch = torch.Generator().manual_seed(0), probe(self.double, 2)

        def drawn(like: fx.Node) -> Tensor:
            kind = torch.complex128 if like.meta["val"].is_complex() else torch.float64
            return torch.randn([*map(self.sized(2), shape_of(like))], generator=draw, dtype=kind)

        def made(held: Mapping[fx.Node, Tensor]) -> Tensor:
            return self.trace.evaluate([node], self.double, batch, given={n: t.clone() for n, t in held.items()})[0]

        way = [n for n in ancestors(node, lambda n: n in self.colours.data and n not in given) if _is_real(n)]
        with suppress(*FOREIGN):
            for scale in SCALES:
                one, two = ({n: scale * drawn(n) for n in given} for _ in range(2))
                first, second, middle = (made(held) for held in (one, two, {n: (one[n] + two[n]) / 2 for n in given}))
                made_on_the_way = self.trace.evaluate(way, self.double, batch, given=one)
                sizes = (float(t.abs().max()) for t in made_on_the_way if t.numel())
                error = ROUNDED * max(*sizes, float(first.abs().max()), float(second.abs().max()))
                if not bool(((first + second) / 2 - middle).abs().max() <= error):
                    return False
            told = not torch.equal(first, second)
            return not told or not bool(made({n: math.nan * one[n] for n in given}).isfinite().all())
        return False

    @cached_property
    def same(self) -> dict[fx.Node, fx.Node]:
        """For every tensor the first one that is computed in the same way."""
        return representatives(self.trace.code.graph)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Groups in the order of the forward pass, shifts without a product last."""
        found: dict[tuple[fx.Node, ...], list[OuterSum]] = {}
        places = {n: k for k, n in enumerate(self.trace.code.graph.nodes)}
        shifts = [p for p in self.products if p.activation is None]
        for p in self.products:
            if p.activation is not None:
                hidden = tuple(dict.fromkeys(self.same[self.bases.get(n, n)] for n in p.reads))
                found.setdefault(hidden, []).append(p)
        groups, used = [], set[OuterSum]()
        for hidden in sorted(found, key=lambda nodes: [places[n] for n in nodes]):
            signals = {self.same[t.signal.node] for p in found[hidden] for t in p.terms}
            own = tuple(s for s in shifts if {self.same[t.signal.node] for t in s.terms} <= signals)
            used.update(own)
            groups.append(Group(hidden, tuple(found[hidden]), own))
        return (*groups, *(Group((), (), (s,)) for s in shifts if s not in used))

    @cached_property
    def inputs(self) -> fx.Node:
        """What the model is called with: the normalised examples, or the whole numbers of tokens."""
        return model_input(self.trace)

    @cached_property
    def first(self) -> tuple[Group, ...]:
        """Groups that read what the model is called with, and nothing else."""
        return tuple(g for g in self.groups if g.hidden == (self.inputs,))

    @cached_property
    def forward(self) -> frozenset[fx.Node]:
        """All that the outputs and what is penalised are computed from, and they themselves."""
        ends = (self.trace.outputs, *self.trace.penalised)
        return frozenset().union(*(ancestors(end) for end in ends if end is not None))

    @cached_property
    def dominators(self) -> dict[fx.Node, tuple[fx.Node, ...]]:
        """For every tensor of the forward pass those through which alone it depends on examples, itself the last."""
        found = dict[fx.Node, tuple[fx.Node, ...]]()
        for node in self.trace.code.graph.nodes:
            if node in self.forward and node in self.colours.data:
                given = [found[n] for n in node.all_input_nodes if n in found]
                common = zip(*given, strict=False) if given else ()
                found[node] = (*(one for one, *others in common if all(n is one for n in others)), node)
        return found

    def behind(self, node: fx.Node) -> list[fx.Node]:
        """A tensor behind the loss, and going back from it those that it depends on data through alone: up to the first
        that depends on other data, too."""
        path = [self.same[node]]
        while True:
            behind = [n for n in node.all_input_nodes if n in self.colours.behind]
            if len(behind) != 1 or any(n in self.colours.data and n not in behind for n in node.all_input_nodes):
                return path
            if not self.colours.per_example(behind[0]):
                return path
            node = behind[0]
            path.append(self.same[node])

    def rows(
        self, term: Term, operand: Operand, task: Task, batch: Batch, given: Mapping[fx.Node, Tensor] | None = None
    ) -> Float[Tensor, "blocks rows columns"]:
        """An operand of a term as matrices, for a batch, or where tensors that it is computed from are given."""
        value = self.trace.evaluate([operand.node], task, batch, given=given)[0]
        return self.matrices(term, operand, value, len(batch))

    def read(self, product: OuterSum, hidden: Tensor, task: Task | None = None) -> Float[Tensor, "blocks rows inputs"]:
        """Activations that a product reads of its group's hidden tensor, given for any number of examples, in the
        precision of a task, by default its own."""
        term = product.terms[0]
        assert term.activation is not None
        node = term.activation.node
        base = self.same[self.bases.get(node, node)]
        given = {node if self.same[node] is base else base: hidden}
        task = self.task if task is None else task
        return self.rows(term, term.activation, task, probe(task, len(hidden)), given)

    def matrices(
        self, term: Term, operand: Operand, value: Tensor, examples: int
    ) -> Float[Tensor, "blocks rows columns"]:
        """An operand's value, the rows in one order for both operands of a term."""
        own, kinds = atoms(operand.dims), dict(term.kinds)
        blocks = [a for a in kinds if kinds[a] == "both"]
        columns = [a for a in kinds if a in own and kinds[a] != "both"]
        rows = [a for a in atoms(term.signal.dims) if a not in kinds and a in own]
        rows += [a for a in own if a not in kinds and a not in rows]
        found = operand.matrix(value, (*blocks, *rows, *columns), self.sized(examples))
        counts = [math.prod(a.length for a in axes) for axes in (blocks, columns)]
        return found.reshape(counts[0], -1, counts[1])

    def sized(self, examples: int) -> Callable[[int], int]:
        """Lengths of axes as they were traced to those with so many examples."""
        traced = self.trace.examples
        return lambda length: length if length % traced else length // traced * examples


def _is_real(node: fx.Node) -> bool:
    """Whether it holds real numbers, as many whatever the examples hold."""
    value = node.meta.get("val")
    told = isinstance(value, Tensor) and all(isinstance(size, int) for size in value.shape)
    return bool(told and cast(Tensor, value).is_floating_point())


KEPT = 16  # graphs of tasks, the last that were asked for


@lru_cache(maxsize=KEPT)
def traced(task: Task) -> Graph:
    """The graph of a task; traced once."""
    found = _graph(task, trace(task))
    loops, fixed = any(len(p.terms) == found.trace.examples for p in found.products), not _resizes(found)
    other = _unrolled(found) if loops or fixed else found
    if fixed and (other is found or not _resizes(other)):
        return replace(found, trace=replace(found.trace, fixed=True))
    return other


def _resizes(graph: Graph) -> bool:
    """Whether the graph is the network's for other numbers of examples, too: it may fill its batch up, or count it."""
    task, count, end = graph.task, graph.trace.examples, graph.trace.outputs
    ends = [node for node in graph.trace.gradients.values() if node is not None]
    try:
        with plain_operations(), nullcontext() if graph.trace.by_values else FakeTensorMode(allow_non_fake_inputs=True):
            graph.trace.evaluate(ends[:1], task, probe(task, count - 1))
    except FOREIGN:
        return False
    made = (n.meta["val"] for n in graph.forward if isinstance(n.meta.get("val"), Tensor))
    small = sum(value.numel() for value in made) <= SMALL
    counts = (2, 2 * count + 1) if small else (2,)
    if end is None or task.stochastic:
        return True
    return answers_as(task, lambda b: graph.trace.evaluate([end], task, b)[0], counts)


def answers_as(task: Task, answers: Callable[[Batch], Tensor], counts: tuple[int, ...]) -> bool:
    """Whether something has the outputs of a task that draws nothing at random, for so many random examples."""
    with suppress(*FOREIGN):
        for batch in (probe(task, count) for count in counts):
            with plain_operations(), torch.no_grad():
                found, wanted = answers(batch), task.logits(task.parameters, task.buffers, batch.inputs)[0]
            error = 1e-5 * float(wanted.abs().max())
            if not torch.allclose(found.reshape(wanted.shape), wanted, rtol=1e-3, atol=error):
                return False
        return True
    return False


def followed(task: Task) -> Graph | str:
    """The graph of a task, or why there is none: a network is anybody's."""
    try:
        return traced(task)
    except FOREIGN as error:
        return f"the network's gradient could not be followed ({said(error)})"


def _unrolled(graph: Graph) -> Graph:
    """The graph of a network with a loop over its examples, as if it were given them one by one; itself where that
    is another network."""
    try:
        other = trace(graph.task, one_by_one=True)
    except FOREIGN:
        return graph
    own, count = other.outputs, graph.trace.examples
    if own is None or other.examples != count or graph.task.stochastic:
        return graph
    same = answers_as(graph.task, lambda b: other.evaluate([own], graph.task, b)[0], (count,))
    return _graph(graph.task, other) if same else graph


def _graph(task: Task, made: TracedGradient) -> Graph:
    colours = Colours(made)
    finder = OuterProducts(colours)
    products: dict[fx.Node, list[str]] = {}
    unexplained: list[str] = []
    for name, gradient in made.gradients.items():
        if gradient is not None and name in made.written:
            unexplained.append(name)
        pending, seen = [] if gradient is None else [gradient], set[fx.Node]()
        while pending:
            node = pending.pop()
            if node in seen or node not in colours.behind:
                continue
            seen.add(node)
            behind = [n for n in node.all_input_nodes if n in colours.behind]
            if finder.of(node) is not None:
                products.setdefault(node, []).append(name)
            elif any(n in colours.data and n not in behind for n in node.all_input_nodes):
                unexplained.append(name)
            else:
                pending += behind
    own = {g: name for name, g in made.gradients.items() if g is not None}
    found = [
        OuterSum(n, tuple(finished(t) for t in finder.of(n) or ()), tuple(names), own.get(n))
        for n, names in products.items()
        if finder.of(n)
    ]
    return Graph(task, made, colours, tuple(found), tuple(dict.fromkeys(unexplained)))
