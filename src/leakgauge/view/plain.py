"""A network that computes the same with its linear layers and convolutions as modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from leakgauge.batch import DataSpec
from leakgauge.task import cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.view.axes import PERMUTED, RESHAPED, copied, order_of, shape_of
from leakgauge.view.effective import Effective
from leakgauge.view.graph import Graph
from leakgauge.view.trace import operation, places_in, writes

__all__ = ["Move", "PlainNetwork", "plain_network"]

Move = Callable[[Tensors], Tensors]
"""Tensors of an update by the network's own names → those of some of the plain network's."""


@dataclass(frozen=True, eq=False)
class PlainNetwork:
    """The network and how an update of the original one reads in its names.

    Attributes:
        gone: parameters of the original that it has no more.
        moves: what its own parameters' entries of an update are.
    """

    module: nn.Module
    gone: frozenset[str]
    moves: tuple[Move, ...]


def plain_network(graph: Graph, layers: tuple[Effective, ...], data: DataSpec) -> PlainNetwork:
    """The network from its graph, each of `layers` a linear one.

    Args:
        data: the format of what it is called with.
    """
    return _Builder(graph, layers, data).built()


class _Builder:
    def __init__(self, graph: Graph, layers: tuple[Effective, ...], data: DataSpec) -> None:
        self.data = data
        self.graph, self.task = graph, graph.task
        self.layers = {layer.output: layer for layer in layers}
        self.root, self.made = nn.Module(), fx.Graph()
        self.env: dict[fx.Node, Any] = {}
        self.gone: set[str] = set()
        self.moves: list[Move] = []
        self.names = {n: name for name, n in graph.trace.nodes.items()}
        self.input: fx.Node | None = None

    def built(self) -> PlainNetwork:
        graph = self.graph
        assert graph.trace.outputs is not None
        self.input = self.made.placeholder("x")
        needed = self._needed()
        for node in graph.trace.code.graph.nodes:
            if node not in needed or not (node in graph.colours.data or self._writes(node)):
                continue  # what is made of parameters alone is held when it is asked for
            if node is graph.inputs:
                self.env[node] = self._given()
            elif node in self.layers:
                self.env[node] = self._effective(self.layers[node])
            elif node.op == "placeholder":
                continue
            else:
                found = self._module(node)
                self.env[node] = self._copied(node) if found is None else found
        end = graph.trace.outputs
        if operation(end) == "_log_softmax" and self.task.loss is cross_entropy:  # which takes it again, to no effect
            end = cast(fx.Node, end.args[0])
        self.made.output(self.env[end])
        self._hold_the_rest()
        return PlainNetwork(fx.GraphModule(self.root, self.made), frozenset(self.gone), tuple(self.moves))

    def _given(self) -> Any:
        """What the original is called with."""
        now, before = self.data, self.task.data
        if now is before or any(layer.given == (self.graph.inputs,) for layer in self.layers.values()):
            return self.input
        return self.made.call_function(_reformatted, (self.input, (now.mean, now.std), (before.mean, before.std)))

    def _needed(self) -> set[fx.Node]:
        """What the outputs are computed from beyond the layers, and what writes into buffers on the way."""
        trace = self.graph.trace
        found, pending = set[fx.Node](), [cast(fx.Node, trace.outputs)]
        pending += [n for n in trace.code.graph.nodes if n not in self.graph.colours.behind and self._writes(n)]
        while pending:
            node = pending.pop()
            if node in found:
                continue
            found.add(node)
            if node is not self.graph.inputs:
                pending += self.layers[node].given if node in self.layers else node.all_input_nodes
        return found

    def _writes(self, node: fx.Node) -> bool:
        """Whether a node writes into a buffer."""
        if not writes(node):
            return False
        held = [m for n in node.all_input_nodes for m in (n, *n.all_input_nodes)]
        return any(self.names.get(m, "").startswith("b:") for m in held)

    def _of(self, node: fx.Node) -> Any:
        """What stands for a node; parameters and buffers are held when they are asked for."""
        if node in self.env:
            return self.env[node]
        if node not in self.names:
            self.env[node] = self._copied(node)
            return self.env[node]
        name = self.names[node]
        if name == "inputs":
            return self.input
        kind, own = name.split(":", 1) if ":" in name else ("", name)
        held = self.task.parameters if kind == "p" else self.task.buffers
        hold(self.root, own, held[own], kind == "p")
        self.env[node] = self.made.get_attr(own)
        return self.env[node]

    def _copied(self, node: fx.Node) -> Any:
        name = operation(node)
        below = node.args[0] if node.args else None
        if name == "detach" and isinstance(below, fx.Node) and self._is_parameter(below):
            return self._of(below)  # how the trace held it
        held = node.args[1] if name == "add" and len(node.args) > 1 else None
        if isinstance(held, fx.Node) and self._is_parameter(held) and operation(cast(fx.Node, below)) == "new_zeros":
            return self._of(held)  # how a task gives buffers
        if node.op == "get_attr":
            value = getattr(self.graph.trace.code, str(node.target))
            hold(self.root, str(node.target), value, False)
            return self.made.get_attr(str(node.target))
        size, kind = None, next(iter(self.task.parameters.values())).dtype

        def sized(value: Any) -> Any:
            nonlocal size
            traced = self.graph.trace.examples
            if value is kind:
                return self.made.call_function(getattr, (self._like(node), "dtype"))
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value % traced:
                return value
            size = size if size is not None else self._examples(node)
            return self.made.call_function(_times, (size, value // traced))

        def given(value: Any) -> Any:
            return self._of(value) if isinstance(value, fx.Node) else sized(value)

        still = places_in(node, self.graph.trace.examples)
        args = tuple(a if k in still else fx.node.map_aggregate(a, given) for k, a in enumerate(node.args))
        kwargs = fx.node.map_aggregate(node.kwargs, given)
        target = node.target
        assert callable(target)
        return self.made.call_function(target, cast(tuple[Any, ...], args), cast(Any, kwargs))

    def _is_parameter(self, node: fx.Node) -> bool:
        return self.names.get(node, "").startswith(("p:", "b:"))

    def _like(self, node: fx.Node) -> Any:
        """A node of the float type that the network is in."""
        kind = next(iter(self.task.parameters.values())).dtype
        of = [n for n in node.all_input_nodes if getattr(n.meta.get("val"), "dtype", None) is kind]
        return self._of(of[0]) if of else self.input

    def _examples(self, node: fx.Node) -> Any:
        """A node for the number of examples, by a tensor that the node is given."""
        traced = self.graph.trace.examples
        for given in node.all_input_nodes:
            value = given.meta.get("val")
            if given not in self.graph.colours.data or not isinstance(value, Tensor):
                continue
            for axis, length in enumerate(value.shape):
                if length and length % traced == 0:
                    return self.made.call_function(_count, (self._of(given), axis, length // traced))
        return self.made.call_function(_count, (self.input, 0, 1))

    def _effective(self, layer: Effective) -> Any:
        name = self._path(layer.parameters, layer.used)
        like = next(iter(self.task.parameters.values()))
        weight, bias = layer.weight, layer.bias
        if layer.rows is not None:  # what is determined of it trains, and the rest stays
            weight, bias = layer.rows @ weight, layer.rows @ bias
        linear = nn.Linear(weight.shape[1], len(weight), bias=layer.moves)
        linear.weight.data = weight.to(like).contiguous()
        if layer.moves:
            linear.bias.data = bias.to(like)
        self.root.add_module(name, linear) if "." not in name else place(self.root, name, linear)
        self.gone.update(layer.parameters)
        self.moves.append(_solved(layer, name))
        flat = [self.made.call_function(torch.flatten, (self._of(h), 1)) for h in layer.given]
        given = flat[0] if len(flat) == 1 else self.made.call_function(torch.cat, (flat, 1))
        if len(layer.given) == 1 and len(shape_of(layer.given[0])) == 2:
            given = self._of(layer.given[0])
        found: Any = self.made.call_module(name, (given,))
        shift = layer.bias
        if layer.rows is not None:
            rest = {"rows": layer.rows, "rest": (layer.weight - layer.rows.T @ weight).T}
            for key, value in rest.items():
                hold(self.root, f"{name}_{key}", value.to(like).contiguous(), False)
            found = self.made.call_function(torch.matmul, (found, self.made.get_attr(f"{name}_rows")))
            beside = self.made.call_function(torch.matmul, (given, self.made.get_attr(f"{name}_rest")))
            found = self.made.call_function(torch.add, (found, beside))
            shift = layer.bias - layer.rows.T @ bias * layer.moves
        if (not layer.moves or layer.rows is not None) and bool(shift.any()):
            hold(self.root, f"{name}_shift", shift.to(like), False)
            found = self.made.call_function(torch.add, (found, self.made.get_attr(f"{name}_shift")))
        if len(shape_of(layer.output)) != 2:
            found = self.made.call_function(torch.unflatten, (found, 1, shape_of(layer.output)[1:]))
        return found

    def _path(self, parameters: tuple[str, ...], used: tuple[str, ...]) -> str:
        """Where a layer is held: at the user's own name of the module, or of the weight."""
        owners = [name.split(".")[:-1] for name in parameters]
        shared = []
        for parts in zip(*owners, strict=False):
            if len(set(parts)) > 1:
                break
            shared.append(parts[0])
        largest = max(used, key=lambda name: self.task.parameters[name].numel())
        found = ".".join(shared) or largest.removesuffix(".weight")
        taken = {*self.task.parameters, *self.task.buffers} - set(parameters)
        inside = any(name.startswith(f"{found}.") for name in taken)
        return largest.replace(".", "_") if inside else found

    def _module(self, node: fx.Node) -> Any:
        """A layer of one parameter that a node multiplies with, as a module at the user's name."""
        name = operation(node)
        if name in ("addmm", "mm"):
            return self._linear(node)
        if name == "convolution":
            return self._convolution(node)
        return None

    def _parameter(self, value: Any) -> tuple[str, bool] | None:
        """The parameter that a node is, by name, and whether it is transposed."""
        turned = False
        while isinstance(value, fx.Node):
            name = self.names.get(value, "")
            if name.startswith("p:"):
                own = name[2:]
                return None if own in self.gone or self._uses(own) > 1 else (own, turned)
            if operation(value) in PERMUTED and order_of(value) == [1, 0]:
                turned = not turned
            elif not copied(value):
                return None
            value = value.args[0] if value.args else None
        return None

    def _uses(self, name: str) -> int:
        """How many nodes of the forward pass make use of a parameter, views of it being seen through."""
        pending, count = [self.graph.trace.nodes[f"p:{name}"]], 0
        while pending:
            for user in pending.pop().users:
                if user in self.graph.colours.behind or user not in self.graph.forward:
                    continue
                if copied(user) or operation(user) in PERMUTED:
                    pending.append(user)
                else:
                    count += 1
        return count

    def _layer(self, module: nn.Module, weight: str, bias: str | None, move: Callable[[Tensor], Tensor]) -> str:
        """Holds a module of one weight and says what an update is of it."""
        owner, _, last = weight.rpartition(".")
        own = last == "weight" and bias in (None, f"{owner}.bias" if owner else "bias") and owner != ""
        name = owner if own else weight
        parameters = dict(module.named_parameters())
        parameters["weight"].data = move(self.task.parameters[weight]).clone()
        if bias is not None:
            parameters["bias"].data = self.task.parameters[bias].reshape(-1).clone()
        place(self.root, name, module)
        self.gone.update({weight} if bias is None else {weight, bias})

        def moved(sent: Tensors) -> Tensors:
            found = {f"{name}.weight": move(sent[weight]).contiguous()}
            return found if bias is None else {**found, f"{name}.bias": sent[bias].reshape(-1)}

        self.moves.append(moved)
        return name

    def _linear(self, node: fx.Node) -> Any:
        offset, given, factor = (None, *node.args) if operation(node) == "mm" else node.args
        found, bias = self._parameter(factor), None if offset is None else self._parameter(offset)
        if found is None or not isinstance(given, fx.Node) or given not in self.graph.colours.data or node.kwargs:
            return None
        if offset is not None and (bias is None or len(self.task.parameters[bias[0]].shape) != 1):
            return None
        weight, turned = found
        rows, columns = self.task.parameters[weight].shape if turned else self.task.parameters[weight].T.shape
        linear = nn.Linear(columns, rows, bias=offset is not None)
        move: Callable[[Tensor], Tensor] = _itself if turned else torch.t
        name = self._layer(linear, weight, None if bias is None else bias[0], move)
        natural = given
        while operation(natural) in RESHAPED and isinstance(natural.args[0], fx.Node):
            if shape_of(natural.args[0])[-1:] != (columns,):
                break
            natural = natural.args[0]
        out = self.made.call_module(name, (self._of(natural),))
        return self.made.call_function(torch.reshape, (out, (-1, rows))) if natural is not given else out

    def _convolution(self, node: fx.Node) -> Any:
        given, factor, offset, stride, padding, dilation, transposed, extra, groups = node.args
        found, bias = self._parameter(factor), None if offset is None else self._parameter(offset)
        if found is None or found[1] or (offset is not None and bias is None) or not isinstance(given, fx.Node):
            return None
        kinds = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
        plain = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
        shape = self.task.parameters[found[0]].shape
        kind = cast(Any, (kinds if transposed else plain)[len(shape) - 3])
        across = cast(int, groups)
        before, after = (shape[0], shape[1] * across) if transposed else (shape[1] * across, shape[0])
        more = {"output_padding": tuple(cast(list[int], extra))} if transposed else {}
        sizes = {"stride": stride, "padding": padding, "dilation": dilation}
        sizes = {k: tuple(cast(list[int], v)) for k, v in sizes.items()}
        module = kind(before, after, tuple(shape[2:]), groups=across, bias=offset is not None, **sizes, **more)
        name = self._layer(module, found[0], None if bias is None else bias[0], _itself)
        return self.made.call_module(name, (self._of(given),))

    def _hold_the_rest(self) -> None:
        """Parameters that the outputs do not depend on, and buffers, which the next round is told in."""
        for name, value in self.task.parameters.items():
            if name not in self.gone:
                hold(self.root, name, value, True)
        for name, value in self.task.buffers.items():
            hold(self.root, name, value, False)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _reformatted(x: Tensor, now: tuple[Any, Any], before: tuple[Any, Any]) -> Tensor:
    """Normalised in one way, by mean and deviation, what was in another."""

    def each(values: tuple[float, ...]) -> Tensor:
        return x.new_tensor(values).view(-1, *([1] * (x.ndim - 2)))

    return (x * each(now[1]) + each(now[0]) - each(before[0])) / each(before[1])


def _times(count: int, times: int) -> int:
    return count * times


def _count(tensor: Tensor, axis: int, times: int) -> int:
    return int(tensor.shape[axis]) // times


def _solved(layer: Effective, name: str) -> Move:
    def moved(sent: Tensors) -> Tensors:
        found = layer.solved(sent)
        found = found if layer.rows is None else layer.rows.to(found.device) @ found
        like = sent[layer.used[0]]
        held = {f"{name}.weight": found[:, :-1].to(like).contiguous()}
        return {**held, f"{name}.bias": found[:, -1].to(like).contiguous()} if layer.moves else held

    return moved


def _owner(root: nn.Module, path: list[str]) -> nn.Module:
    for part in path:
        inside = dict(root.named_children())
        if part not in inside:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def hold(root: nn.Module, name: str, value: Tensor, trained: bool) -> None:
    *path, last = name.split(".")
    owner = _owner(root, path)
    if last in owner._parameters or last in owner._buffers:
        return
    if trained:
        owner.register_parameter(last, nn.Parameter(value.detach().clone()))
    else:
        owner.register_buffer(last, value.detach().clone())


def place(root: nn.Module, name: str, module: nn.Module) -> None:
    *path, last = name.split(".")
    _owner(root, path).add_module(last, module)
