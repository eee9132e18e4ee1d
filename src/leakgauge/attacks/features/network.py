"""A forward pass as a graph that can be cut anywhere: what a tensor inside is made of, and what is made of it."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import make_fx

from leakgauge.attacks.features.unfolding import Unfolding, convolution
from leakgauge.errors import FOREIGN, said
from leakgauge.task import Task

ATEN = torch.ops.aten
SAME = (ATEN.alias.default, ATEN.detach.default, ATEN.clone.default)
"""What leaves a parameter as it is."""


class Untraceable(Exception):
    """The forward pass cannot be written as one graph, e.g. because a value decides what is run."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A product of one parameter with the rows of a hidden tensor.

    Attributes:
        weight: its name in the update.
        hidden: the tensor that it reads.
        output: what it answers, bias included where it adds one.
        unfolding: from the hidden tensor to its rows.
        sequence: a product of matrices, places before channels; else a convolution.
        bias: name of the parameter that it adds itself.
    """

    weight: str
    hidden: Node
    output: Node
    unfolding: Unfolding
    sequence: bool
    bias: str | None = None

    def matrix(self, gradient: Tensor) -> Float[Tensor, "filters columns"]:
        """The weight's gradient, a row a filter, columns in the order of the unfolding."""
        return gradient.flatten(1) if self.sequence else gradient.flatten(2).transpose(1, 2).flatten(1)

    def maps(self, hidden: Tensor, examples: int) -> Float[Tensor, "n c pixels"]:
        """The hidden tensor, pixels last."""
        if self.sequence:
            return hidden.reshape(examples, -1, hidden.shape[-1]).transpose(1, 2)
        return hidden.flatten(2)

    def hidden_of(self, maps: Float[Tensor, "n c pixels"], like: torch.Size) -> Tensor:
        """`maps` back."""
        return (maps.transpose(1, 2) if self.sequence else maps).contiguous().reshape(like)

    def signals(self, output: Tensor, examples: int) -> Float[Tensor, "n places filters"]:
        """What belongs to its output, places before filters."""
        if self.sequence:
            return output.reshape(examples, -1, output.shape[-1])
        return output.flatten(2).transpose(1, 2)

    def output_of(self, signals: Float[Tensor, "n places filters"], like: torch.Size) -> Tensor:
        """`signals` back."""
        return (signals if self.sequence else signals.transpose(1, 2)).contiguous().reshape(like)


@dataclass(frozen=True, eq=False)
class Network:
    """The graph of the logits of a batch.

    Attributes:
        inputs, logits: its first and its last node.
        constants: values of the nodes that do not depend on the examples.
        names: nodes that are a parameter.
        order: the others, in the order in which they run.
        shapes: of their values.
        examples: in the batch.
    """

    inputs: Node
    logits: Node
    constants: Mapping[Node, Tensor]
    names: Mapping[Node, str]
    order: tuple[Node, ...]
    shapes: Mapping[Node, torch.Size]
    examples: int
    _graph: fx.Graph = field(repr=False)

    @staticmethod
    def of(task: Task, examples: int) -> Network:
        """Traces the model with fake tensors.

        Raises:
            Untraceable: it cannot be traced; the message says why.
        """
        inputs = torch.zeros(examples, *task.data.shape, dtype=next(iter(task.parameters.values())).dtype)

        def answer(parameters: dict[str, Tensor], buffers: dict[str, Tensor], given: Tensor) -> Tensor:
            return task.logits(parameters, buffers, given)[0]

        try:
            pure = functionalize(answer, remove="mutations")
            made = make_fx(pure, tracing_mode="fake", _allow_non_fake_inputs=True)(
                task.parameters, task.buffers, inputs
            )
        except FOREIGN as error:
            raise Untraceable(said(error)) from error
        graph = made.graph
        graph.eliminate_dead_code()
        return _network(task, made, graph, examples)

    def to(self, dtype: torch.dtype) -> Network:
        """The same in another precision."""
        return replace(
            self, constants={n: t.to(dtype) if t.is_floating_point() else t for n, t in self.constants.items()}
        )

    def dynamic(self, node: Node) -> bool:
        """Whether it depends on the examples."""
        return node not in self.constants

    def users(self, node: Node) -> list[Node]:
        """What is made of it; operations with several answers count as the answer that is used."""
        found: list[Node] = []
        for user in node.users:
            several = any(u.target is operator.getitem for u in user.users)
            found += [u for u in (user.users if several else (user,)) if u.op != "output"]
        return found

    def operands(self, node: Node) -> list[Node]:
        """What it is made of, of what depends on the examples."""
        source = node.args[0] if node.target is operator.getitem else node
        assert isinstance(source, Node)
        return [n for n in source.all_input_nodes if self.dynamic(n)]

    def run(self, given: Mapping[Node, Tensor], wanted: Sequence[Node]) -> list[Tensor]:
        """Values of nodes where some are given; only what lies between is run.

        Raises:
            KeyError: the inputs are needed and not given.
        """
        values: dict[Node, Any] = dict(given)
        needed, todo = set(), [n for n in wanted if n not in values]
        while todo:
            node = todo.pop()
            if node in needed:
                continue
            if node is self.inputs:
                raise KeyError("the inputs")
            needed.add(node)
            todo += [n for n in node.all_input_nodes if n not in values and n not in self.constants]
        for node in self.order:
            if node not in needed:
                continue
            assert callable(node.target)
            args, kwargs = fx.node.map_arg(
                (node.args, node.kwargs), lambda n: values[n] if n in values else self.constants[n]
            )
            values[node] = node.target(*args, **kwargs)
        return [values[n] for n in wanted]

    def between(self, given: Sequence[Node], node: Node) -> bool:
        """Whether a node needs the inputs where some are given."""
        known, todo, seen = set(given), [node], set()
        while todo:
            at = todo.pop()
            if at is self.inputs:
                return True
            if at in seen or at in known:
                continue
            seen.add(at)
            todo += [n for n in at.all_input_nodes if self.dynamic(n)]
        return False

    def layers(self) -> list[Layer]:
        """The products with a parameter that nothing else uses, in the order in which they run."""
        return [layer for node in self.order if (layer := self._layer(node)) is not None]

    def parameter(self, node: object) -> str | None:
        """The parameter that a constant is, as it stands."""
        while isinstance(node, Node) and node.target in SAME:
            node = node.args[0]
        return self.names.get(node) if isinstance(node, Node) else None

    def _layer(self, node: Node) -> Layer | None:
        if node.target is ATEN.convolution.default:
            hidden, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
            name = self._alone(weight)
            if name is None or transposed or groups != 1 or not isinstance(hidden, Node) or not self.dynamic(hidden):
                return None
            shape, kernel = self.shapes[hidden], self.constants[weight].shape[2:]  # type: ignore[index]
            made = convolution(shape[2:], shape[1], kernel, stride, padding, dilation)  # type: ignore[arg-type]
            return Layer(name, hidden, node, made, False, self.parameter(bias))
        if node.target not in (ATEN.mm.default, ATEN.addmm.default):
            return None
        hidden, weight = node.args[-2:]
        turned = isinstance(weight, Node) and weight.target is ATEN.t.default
        name = self._alone(weight.args[0]) if turned and isinstance(weight, Node) else None
        if name is None or not isinstance(hidden, Node) or not self.dynamic(hidden):
            return None
        rows, channels = self.shapes[hidden]
        if rows % self.examples:
            return None
        places = rows // self.examples
        made = Unfolding(torch.arange(places)[:, None], places, channels)
        bias = self.parameter(node.args[0]) if node.target is ATEN.addmm.default else None
        return Layer(name, hidden, node, made, True, bias)

    def _alone(self, node: object) -> str | None:
        name = self.parameter(node)
        if name is None or not isinstance(node, Node):
            return None
        while node.target in SAME:
            if len(node.users) > 1:
                return None
            node = node.args[0]
            assert isinstance(node, Node)
        return name if len(node.users) == 1 else None


def _network(task: Task, made: fx.GraphModule, graph: fx.Graph, examples: int) -> Network:
    spots = [n for n in graph.nodes if n.op == "placeholder"]
    held = [*task.parameters.values(), *task.buffers.values()]
    constants: dict[Node, Any] = dict(zip(spots[:-1], held, strict=True))
    inputs, order, shapes = spots[-1], [], {spots[-1]: torch.Size((examples, *task.data.shape))}
    moving = {inputs}
    (output,) = (n for n in graph.nodes if n.op == "output")
    for node in graph.nodes:
        if node.op == "get_attr":
            constants[node] = getattr(made, str(node.target))
        elif node.op == "call_function":
            value = node.meta.get("val")
            if any(n in moving for n in node.all_input_nodes) and not _shape_only(node):
                moving.add(node)
                order.append(node)
                if isinstance(value, Tensor):
                    shapes[node] = value.shape
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: constants.get(n, task_like(task)))
                with torch.no_grad():
                    constants[node] = node.target(*args, **kwargs)
    (logits,) = output.all_input_nodes
    names = dict(zip(spots, task.parameters, strict=False))
    return Network(inputs, logits, constants, names, tuple(order), shapes, examples, graph)


def _shape_only(node: Node) -> bool:
    """Whether it takes no more than type and device of its argument."""
    return node.target in (ATEN.new_zeros.default, ATEN.new_ones.default, ATEN.new_full.default, ATEN.new_empty.default)


def task_like(task: Task) -> Tensor:
    """An empty tensor of the task's type."""
    return torch.empty((), dtype=next(iter(task.parameters.values())).dtype)
