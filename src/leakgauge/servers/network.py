"""A network read back from its logits: the linear layers in which it ends, and the convolutions below them."""

import math
from dataclasses import dataclass, replace
from typing import cast

from torch import fx

from leakgauge.errors import InputError, require
from leakgauge.task import Task
from leakgauge.view.axes import shape_of
from leakgauge.view.graph import Graph, followed
from leakgauge.view.trace import draws, operation

FIT = "give a chain of convolutions, max-pools and linear layers with ReLUs between them, such as vgg16"
EVAL = "audit mode: eval, or another attack"
ENDS = "give a classifier that ends in linear layers with ReLU, sigmoid or tanh between them"

_LINEAR = ("addmm", "mm")
_AVERAGES = ("_adaptive_avg_pool2d", "mean")
_SHAPED = ("view", "_unsafe_view", "reshape", "flatten", "clone", "alias", *_AVERAGES)


@dataclass(frozen=True, kw_only=True)
class NetworkLayer:
    """One layer and the activation that follows it."""

    weight: str  # weight, bias: its parameters in the update; `bias` is `None` where it has none
    bias: str | None
    inputs: int  # inputs, outputs: units or channels
    outputs: int
    relu: bool = False  # a ReLU follows: a unit can die
    smooth: bool = False  # a sigmoid or tanh follows

    @property
    def name(self) -> str:
        return _layer(self.weight)


@dataclass(frozen=True, kw_only=True)
class Stage(NetworkLayer):
    """One convolution, and what follows it before the next."""

    kernel: int  # odd side of the square kernel; the convolution has stride 1 and keeps the spatial size
    size: tuple[int, int]  # rows and columns that the convolution sees
    pool: int = 1  # side (and stride) of the max-pool that follows, 1 for none


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0] or parameter


@dataclass(frozen=True, eq=False)
class _Path:
    """Tensors in front of the logits, each computed from the one before it alone, the first one first."""

    graph: Graph
    nodes: tuple[fx.Node, ...]
    stopped: str  # why what the first one is computed from is no part; empty where it is the model's input

    def own(self, node: object) -> str | None:
        """Name of the parameter or buffer that a node holds, turned or not; `None` where it is computed."""
        names = {n: name[2:] for name, n in self.graph.trace.nodes.items() if name[:2] in ("p:", "b:")}
        while isinstance(node, fx.Node) and node not in names:
            if operation(node) == "add" and operation(cast(fx.Node, node.args[0])) == "new_zeros":
                node = node.args[1]
            else:
                node = node.args[0] if operation(node) in ("detach", "t", "alias") else None
        return names.get(node) if isinstance(node, fx.Node) else None

    def part(self, node: fx.Node, at: int) -> str | None:
        """Name of an argument; `None` where there is none. Raises `InputError` where it is computed from others."""
        given = node.args[at] if at < len(node.args) else None
        found = self.own(given)
        if given is not None and found is None:
            raise InputError("model", f"{self.place(node)} is computed from other parameters: it cannot be set", FIT)
        return found

    def place(self, node: fx.Node) -> str:
        """What a node is, in words: the layer of its first parameter, else its operation and the layer before it."""
        held = [name for n in node.all_input_nodes if (name := self.own(n))]
        if held:
            return f"layer '{_layer(held[0])}'"
        below = self.nodes[: self.nodes.index(node)] if node in self.nodes else ()
        before = [name for other in below for n in other.all_input_nodes if (name := self.own(n))]
        return f"'{operation(node).strip('_')}'" + (f" behind layer '{_layer(before[-1])}'" if before else "")

    def fits(self, node: fx.Node, condition: bool, problem: str) -> None:
        """Raises `InputError` that names the place unless the condition holds."""
        require(condition, "model", f"{self.place(node)} {problem}", FIT)


def known_graph(task: Task, hint: str) -> Graph:
    """The graph of a task. Raises `InputError` where there is none."""
    if isinstance(graph := followed(task), str):
        raise InputError("model", f"has no layers that are known: {graph}", hint)
    return graph


def _path(task: Task, hint: str) -> _Path:
    graph = known_graph(task, hint)
    require(graph.trace.outputs is not None, "model", "does not say what its logits are", hint)
    node, nodes, stopped = cast(fx.Node, graph.trace.outputs), list[fx.Node](), ""
    while node is not graph.inputs and not stopped:
        nodes.insert(0, node)
        before = [n for n in node.all_input_nodes if n in graph.colours.data and not _is_mask(n)]
        if len(before) != 1:
            joins = "joins several tensors" if before else "is not seen to depend on the input"
            stopped = f"'{operation(node).strip('_')}' {joins}"
            continue
        users = [u for u in before[0].users if u in graph.forward and u in graph.colours.data]
        if len([u for u in users if operation(u) != "empty_like"]) > 1 and before[0] is not graph.inputs:
            stopped = f"what enters '{operation(node).strip('_')}' is used twice"
        node = before[0]
    return _Path(graph, tuple(nodes), stopped)


def _is_mask(node: fx.Node) -> bool:
    """Whether a node is what a dropout multiplies with."""
    return operation(node).startswith("div") and isinstance(node.args[0], fx.Node) and draws(node.args[0])


def _passes(node: fx.Node) -> bool:
    """Whether a node leaves what it is given in order: another shape, an average, or a dropout."""
    return operation(node).rstrip("_") in _SHAPED or any(map(_is_mask, node.all_input_nodes))


def linear_stack(task: Task) -> tuple[NetworkLayer, ...]:
    """The linear layers that end in the logits, first one first, by following the graph back from the output.

    What lies below the first of them is not looked at. Raises `InputError`: the module cannot be traced, ends in
    anything else, or a layer of the stack is frozen.
    """
    path = _path(task, ENDS)
    found: list[NetworkLayer] = []
    relu = smooth = False
    for node in reversed(path.nodes):
        name = operation(node).rstrip("_")
        if name in _LINEAR and path.own(node.args[-1]) is not None:
            found.insert(0, replace(_linear(task, path, node), relu=relu, smooth=smooth))
            relu = smooth = False
        elif name in ("relu", "sigmoid", "tanh"):
            relu, smooth = relu or name == "relu", smooth or name != "relu"
        elif not _passes(node) or (found and len(shape_of(node)) != 2):
            break
    ends = bool(found) and task.outputs == found[-1].outputs
    require(ends, "model", "does not end in a linear layer that makes its logits", ENDS)
    return tuple(found)


def _linear(task: Task, path: _Path, node: fx.Node) -> NetworkLayer:
    weight = cast(str, path.own(node.args[-1]))
    bias = path.part(node, 0) if operation(node) == "addmm" else None
    for part in (weight, bias):
        trained = part is None or part in task.parameters
        require(trained, "model", f"does not train {part}, so the update does not carry it", "unfreeze it")
    turned = operation(cast(fx.Node, node.args[-1])) == "t"
    require(turned, "model", f"multiplies with {weight} as it is, not with a row a unit", "use an nn.Linear")
    outputs, inputs = task.parameters[weight].shape
    return NetworkLayer(weight=weight, bias=bias, inputs=inputs, outputs=outputs)


def chain(task: Task) -> tuple[tuple[Stage, ...], tuple[int, int, int]]:
    """The convolutions below the first linear layer, in order, and the shape (c, h, w) of what is flattened there.

    Convolutions (stride 1, odd square kernel, size kept, zero or replicate padding), ReLU, max-pool (stride = side, no
    padding), average pooling that changes nothing at this size, flatten, and a linear layer, where it ends. Raises
    `InputError`: the data are no images, or the network computes anything else; names the place and why.
    """
    require(len(task.data.shape) == 3, "data", f"has examples of shape {task.data.shape}", "give images")
    path = _path(task, FIT)
    require(not path.stopped, "model", f"is no chain of layers: {path.stopped}", FIT)
    stages: list[Stage] = []
    pad = 0
    flat: tuple[int, ...] = ()
    for node in path.nodes:
        name, before = operation(node).rstrip("_"), cast(fx.Node, node.args[0])
        if name in _LINEAR:
            path.fits(node, bool(flat), "is linear in one axis of an image")
            require(bool(stages), "model", "has no convolution before its linear layers", FIT)
            return tuple(stages), cast(tuple[int, int, int], flat)
        if name == "replication_pad2d":
            pad = cast(list[int], node.args[1])[0]
        elif name == "convolution":
            stages.append(_stage(path, node, stages, pad))
            pad = 0
        elif name in _SHAPED and shape_of(before) != shape_of(node):
            flat = shape_of(before)[1:]
            path.fits(node, name not in _AVERAGES, "changes the size, and only the identity can be inverted")
            whole = len(flat) == 3 and shape_of(node) == (shape_of(before)[0], math.prod(flat))
            path.fits(node, whole, "does not flatten all axes but the first")
        elif name in ("relu", "max_pool2d_with_indices"):
            path.fits(node, bool(stages), "comes before the first convolution")
            last = stages[-1]
            pool = 1 if name == "relu" else _side(path, node)
            stages[-1] = replace(last, relu=last.relu or name == "relu", pool=last.pool * pool)
        else:
            known = _passes(node) or name == "getitem"
            path.fits(node, known, "is not one of the layers that the construction passes through")
    raise InputError("model", "has no linear layer", FIT)


def _stage(path: _Path, node: fx.Node, stages: list[Stage], pad: int) -> Stage:
    weight, bias = path.part(node, 1), path.part(node, 2)
    stride, padding, dilation, transposed, _, groups = node.args[3:9]
    outputs, inputs, *kernel = shape_of(cast(fx.Node, node.args[1]))
    path.fits(node, weight not in {stage.weight for stage in stages}, "is used twice")
    path.fits(node, not stages or stages[-1].relu, "follows another convolution without a ReLU between")
    path.fits(node, stride == [1, 1], f"has stride {stride}")
    plain = bool(dilation == [1, 1] and groups == 1 and not transposed)
    path.fits(node, plain, "is dilated, grouped or transposed")
    odd = len(kernel) == 2 and kernel[0] == kernel[1] and kernel[0] % 2 == 1
    path.fits(node, odd, "has no odd square kernel")
    kept = cast(list[int], padding) == [kernel[0] // 2 - pad] * 2
    path.fits(node, kept, "does not keep the spatial size, or pads with neither zeros nor copies of the edge")
    rows, columns = shape_of(node)[2:]
    size = (rows, columns)
    return Stage(weight=weight or "", bias=bias, inputs=inputs, outputs=outputs, kernel=kernel[0], size=size)


def _side(path: _Path, node: fx.Node) -> int:
    """Side of a max-pool over squares that do not overlap."""
    kernel, *rest = node.args[1:]
    sides = cast(list[int], kernel)
    plain = len({*sides, *cast(list[int], rest[0] if rest else sides)}) == 1
    plain = plain and all(value in ([0, 0], [1, 1], False) for value in rest[1:3]) and not any(rest[3:4])
    path.fits(node, plain and rest[1:2] in ([], [[0, 0]]), "overlaps, pads or rounds up")
    return sides[0]
