"""The sums of outer products that a gradient is made of, found in its graph.

A gradient is linear in the derivative of the loss. Going back from a parameter's gradient through linear operations one
meets places where a tensor that depends on the examples is multiplied with an error signal and examples and positions
are summed over: a sum of outer products δ ⊗ a of error signal and activation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import torch
from torch import Tensor, fx

from leakgauge.view.axes import Atom, Dims, Windows, atoms, cut, fresh, moved, pulled, shape_of
from leakgauge.view.trace import FILLED, TracedGradient, draws, operation


class Colours:
    """What the nodes of a traced gradient depend on: parameters, examples, the derivative of the loss."""

    def __init__(self, traced: TracedGradient) -> None:
        self.parameters: dict[fx.Node, frozenset[str]] = {}
        self.data: set[fx.Node] = set()
        self.behind: set[fx.Node] = set()
        self.examples = traced.examples
        own = {n: name[2:] for name, n in traced.nodes.items() if name.startswith("p:")}
        for node in traced.code.graph.nodes:
            given = [] if operation(node) in FILLED else node.all_input_nodes
            told = draws(node) or node in (traced.nodes["inputs"], traced.nodes["labels"])
            if told or (self.data.intersection(given) and node not in traced.still):
                self.data.add(node)
            if node is traced.nodes["seed"] or self.behind.intersection(given):
                self.behind.add(node)
            held = frozenset({own[node]} if node in own else ())
            self.parameters[node] = held.union(*(self.parameters[n] for n in given))

    def per_example(self, node: fx.Node) -> bool:
        """Whether an axis of the tensor is as long as there are examples, or a multiple of it."""
        value = node.meta.get("val")
        return isinstance(value, Tensor) and any(s and s % self.examples == 0 for s in value.shape)


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor of the graph as a matrix with a row for each example and position."""

    node: fx.Node
    dims: Dims  # of its axes, or of the windows'
    windows: Windows | None = None  # it is unfolded into the windows of a convolution first
    hot: int = 0  # it holds whole numbers, each for a row of zeros with a single one; how long that row is; 0 where not

    def matrix(self, value: Tensor, order: tuple[Atom, ...], sized: Callable[[int], int]) -> Tensor:
        """The tensor with an axis for each atom of `order`, all of which it has, as long as `sized` says."""
        if self.windows is not None:
            value = self.windows(value)
        if self.hot:
            value = torch.nn.functional.one_hot(value, self.hot)
        own = atoms(self.dims)
        return value.reshape([sized(a.length) for a in own]).permute([own.index(a) for a in order])


@dataclass(frozen=True, eq=False)
class Term:
    """One product, its sum over examples and positions in axes of its own."""

    signal: Operand  # behind the loss
    activation: Operand | None  # `None` for a plain sum of the signal
    dims: Dims  # axes of the sum
    site: fx.Node  # site, there: the node that multiplies, and its axes
    there: Dims

    @property
    def kinds(self) -> tuple[tuple[Atom, str], ...]:
        """The atoms of the sum and whether the ``signal``, the ``activation`` or ``both`` have them."""
        of = [set(atoms(o.dims)) if o is not None else set() for o in (self.signal, self.activation)]
        named = {(True, False): "signal", (False, True): "activation", (True, True): "both"}
        return tuple((a, named[a in of[0], a in of[1]]) for a in atoms(self.dims))


Terms = list[Term]


class OuterProducts:
    """Finds the terms that nodes of a gradient are sums of."""

    def __init__(self, colours: Colours) -> None:
        self.colours, self.of = colours, cache(self._of)

    def _of(self, node: fx.Node) -> Terms | None:
        """Products whose sum the node is, in its own axes; `None` where it is something else."""
        if node not in self.colours.behind:
            return []
        name, data = operation(node), self.colours.data
        if name == "getitem" and (found := _convolution(node, self.colours)) is not None:
            return found
        behind = [n for n in node.all_input_nodes if n in self.colours.behind]
        sums = name in _SITES and not self.colours.per_example(node) and any(map(self.colours.per_example, behind))
        if not sums and not any(n in data and n not in behind for n in node.all_input_nodes):
            if name == "add" and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
                return self._sum([self.of(cast(fx.Node, a)) for a in node.args], node)
            if len(behind) == 1 and (below := self.of(behind[0])) is not None:
                dims = [moved(node, t.dims) for t in below]
                if dims and None not in dims:
                    return [replace(t, dims=d) for t, d in zip(below, cast(list[Dims], dims), strict=True)]
            return [_whole(node)] if self.colours.per_example(node) else None
        found = _SITES[name](node, self.colours) if name in _SITES else None
        if found is not None:
            return found
        statistic = name in ("mul", "div") and not any(map(self.colours.per_example, node.all_input_nodes))
        return [_whole(node)] if statistic or self.colours.per_example(node) else None

    def _sum(self, parts: list[Terms | None], node: fx.Node) -> Terms | None:
        if self.colours.per_example(node):
            return [_whole(node)]
        if None in parts:
            return None
        shape, found = shape_of(node), [term for terms in parts for term in terms or ()]
        same = all(tuple(math.prod(a.length for a in axis) for axis in t.dims) == shape for t in found)
        patterns = {tuple((a.length, kind) for a, kind in finished(t).kinds) for t in found}
        return found if same and len(patterns) == 1 else None


def _whole(node: fx.Node) -> Term:
    dims = fresh(shape_of(node))
    return Term(Operand(*pulled(node, dims)), None, dims, node, dims)


def finished(term: Term) -> Term:
    """The term as it is to be read: where the activation has no axis of its own left, a plain sum of what was
    multiplied."""
    if term.activation is None or any(kind == "activation" for _, kind in term.kinds):
        return term
    inner = set(atoms(term.there)) - set(atoms(term.dims))
    if not inner and not any(kind == "both" for _, kind in term.kinds):
        return term  # it multiplied and summed at once: a matrix of one column
    return Term(Operand(*pulled(term.site, term.there)), None, term.dims, term.site, term.there)


def _product(node: fx.Node, colours: Colours, one: Operand, two: Operand, out: Dims) -> Terms | None:
    """A term of two operands of which one is behind the loss and the other is of data."""
    for signal, activation in ((one, two), (two, one)):
        if signal.node in colours.behind and activation.node not in colours.behind:
            below = [o if o.windows or o.hot else Operand(*pulled(o.node, o.dims)) for o in (signal, activation)]
            return [Term(below[0], below[1], out, node, out)]
    return None


def _matrices(node: fx.Node, colours: Colours) -> Terms | None:
    one, two = cast(list[fx.Node], list(node.args[-2:] if operation(node) == "baddbmm" else node.args))
    shapes = shape_of(one), shape_of(two)
    batch, inner = fresh(shapes[0][:-2] if len(shapes[0]) > 2 else ()), fresh(shapes[0][-1:])
    rows, columns = fresh(shapes[0][:-1][len(batch) :]), fresh(shapes[1][len(batch) + 1 :])
    out = (*batch, *rows, *columns)
    return _product(node, colours, Operand(one, (*batch, *rows, *inner)), Operand(two, (*batch, *inner, *columns)), out)


def _entries(node: fx.Node, colours: Colours) -> Terms | None:
    one, two = node.args
    if not isinstance(one, fx.Node) or not isinstance(two, fx.Node):
        return None
    out, held = fresh(shape_of(node)), list[Operand]()
    for operand in (one, two):
        shape = shape_of(operand)
        axes = tuple(() if s == 1 else axis for s, axis in zip(shape, out[len(out) - len(shape) :], strict=True))
        held.append(Operand(*pulled(operand, axes)))
    found = _product(node, colours, held[0], held[1], out)
    return found if found and any(kind == "activation" for _, kind in found[0].kinds) else None


def _convolution(node: fx.Node, colours: Colours) -> Terms | None:
    parent = cast(fx.Node, node.args[0])
    if operation(parent) != "convolution_backward":
        return None
    signal, given, weight = cast(tuple[fx.Node, fx.Node, fx.Node], parent.args[:3])
    out = fresh(shape_of(node))
    if node.args[1] == 2:
        batch, *places = fresh((shape_of(signal)[0], *shape_of(signal)[2:]))
        return [Term(Operand(*pulled(signal, (batch, out[0], *places))), None, out, node, out)]
    if node.args[1] == 0:
        return None
    _, stride, padding, dilation, transposed, _, groups = parent.args[3:10]
    kernel = shape_of(weight)[2:]
    slid, plain = (signal, given) if transposed else (given, signal)
    stride, padding, dilation = (tuple(cast(list[int], v)) for v in (stride, padding, dilation))
    windows = Windows(kernel, stride, padding, dilation, shape_of(plain)[2:])
    batch, *places = fresh((shape_of(plain)[0], *shape_of(plain)[2:]))
    group, outer = fresh((cast(int, groups), shape_of(weight)[0] // cast(int, groups)))
    inner, *kernels = fresh(shape_of(weight)[1:])
    windowed = (batch, (*group, *inner), *kernels, *places)
    dims = ((*group, *outer), inner, *kernels)
    return _product(
        node, colours, Operand(plain, (batch, (*group, *outer), *places)), Operand(slid, windowed, windows), dims
    )


def _put(node: fx.Node, colours: Colours) -> Terms | None:
    """Rows of a table, added up where they were looked up."""
    into, where, values = cast(tuple[fx.Node, list[fx.Node | None], fx.Node], node.args[:3])
    if into in colours.behind or len(where) != 1 or where[0] is None:
        return None
    places = fresh(shape_of(where[0]))
    return _rows(node, colours, where[0], values, places, places)


def _added(node: fx.Node, colours: Colours) -> Terms | None:
    into, axis, where, values = cast(tuple[fx.Node, int, fx.Node, fx.Node], node.args[:4])
    if into in colours.behind or axis != 0:
        return None
    every = fresh(shape_of(where))
    if operation(node) != "scatter_add":
        return _rows(node, colours, where, values, every, every)
    base, dims = pulled(where, every)
    if set(atoms(dims)) & set(atoms(every[1:])):  # not one row in all columns
        return None
    return _rows(node, colours, base, values, dims, cut(every)[:1])


def _rows(
    node: fx.Node, colours: Colours, where: fx.Node, values: fx.Node, places: Dims, leading: Dims
) -> Terms | None:
    out = fresh(shape_of(node))
    if values not in colours.behind or where not in colours.data or not out:
        return None
    axes = (*leading, *out[1:])
    hot = Operand(where, (*places, out[0]), hot=shape_of(node)[0])
    return [Term(Operand(*pulled(values, axes)), hot, out, node, out)]


_SITES: dict[str, Callable[[fx.Node, Colours], Terms | None]] = {
    "mm": _matrices,
    "bmm": _matrices,
    "mv": _matrices,
    "mul": _entries,
    "index_put": _put,
    "_unsafe_index_put": _put,
    "index_add": _added,
    "scatter_add": _added,
}
