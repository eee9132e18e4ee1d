"""A training step's gradient as a graph of elementary tensor operations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx

from leakgauge.batch import Batch
from leakgauge.task import Task

WINDOWED = {
    "convolution": range(3, 8),
    "convolution_backward": range(4, 9),
    "constant_pad_nd": range(1, 2),
    "roll": range(1, 2),
}
"""Arguments that are steps and widths along axes without examples."""
ROUNDED = 1e-12  # relative error in double precision up to which two values are the same
FILLED = {"new_zeros", "zeros_like", "ones_like", "full_like", "empty_like", "new_empty", "new_full", "new_ones"}
"""They take a tensor for its shape alone."""
UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}  # they give memory as it is

NORMS: Mapping[Any, Callable[[Any], list[int]]] = {
    torch.ops.aten.native_batch_norm.default: lambda args: [k for k in range(args[0].ndim) if k != 1],
    torch.ops.aten.native_layer_norm.default: lambda args: list(range(-len(args[1]), 0)),
}
"""Autograd takes the mean and the inverse deviation that they answer beside the value for constants: along which axes
they are taken."""


@dataclass(frozen=True, eq=False)
class Instead:
    """What stands for a node: a function of nodes. As many examples as it returns are taken to go on behind it."""

    given: tuple[fx.Node, ...]
    value: Callable[..., Tensor]


Held = Mapping[fx.Node, Any]  # values of nodes
Others = Mapping[fx.Node, Instead]


@dataclass(frozen=True, eq=False)
class TracedGradient:
    """What one gradient of a task computes."""

    # its placeholders are parameters, buffers, inputs, labels and the derivative of the loss by itself; it returns
    # outputs, then gradients
    code: fx.GraphModule
    # its placeholders by name: ``p:`` a parameter, ``b:`` a buffer, ``inputs``, ``labels``, ``seed``
    nodes: Mapping[str, fx.Node]
    # where each parameter's gradient is; `None` where the loss does not depend on it
    gradients: Mapping[str, fx.Node | None]
    outputs: fx.Node | None  # what the loss is given; `None` where the task does not say
    penalised: tuple[fx.Node, ...]  # what each of the task's penalties is given
    examples: int  # how many it was traced with
    # parameters whose gradients are written, piece by piece, into what was a constant. Only zeros for a derivative, as
    # of a rounding, are constants otherwise.
    written: frozenset[str] = frozenset()
    # of the operations on examples alone those that were tried and are affine in them
    affine: frozenset[fx.Node] = frozenset()
    still: frozenset[fx.Node] = frozenset()  # what is made of examples and does not depend on what they hold
    by_values: bool = False  # what examples hold decides what is computed
    fixed: bool = False  # it runs with as many examples as it was traced with, and with no other number

    def evaluate(
        self,
        wanted: list[fx.Node],
        task: Task,
        batch: Batch,
        *,
        given: Held | None = None,
        instead: Others | None = None,
    ) -> list[Tensor]:
        """Values of nodes at a batch of any number of examples, the nodes `given` held at theirs; see `run`."""
        held = arguments(task, batch)
        environment = {n: held[name] for name, n in self.nodes.items()} | dict(given or {})
        return self.run(wanted, environment, len(batch), next(iter(task.parameters.values())).dtype, instead)

    def run(
        self, wanted: list[fx.Node], given: Held, examples: int, kind: torch.dtype, instead: Others | None = None
    ) -> list[Tensor]:
        """Values of nodes where others are given. `kind`: the float type of what is given. `instead`: what stands for
        some nodes. Only what `wanted` are computed from forward is run then, and it holds up derivatives where the
        network does."""
        if self.fixed and examples != self.examples:
            return self._in_parts(wanted, given, examples, kind, instead)
        environment, others = dict(given), instead or {}
        needed, pending = set(environment), list(wanted)
        while pending:
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending += others[node].given if node in others else node.all_input_nodes
        running = _Resized(self.code, self.examples, examples, (self.nodes["seed"].meta["val"].dtype, kind))
        running.env, running.held_up = environment, instead is not None
        for node in self.code.graph.nodes:
            if node in others and node in needed:
                environment[node] = others[node].value(*(environment[n] for n in others[node].given))
                running.examples = environment[node].numel() * self.examples // node.meta["val"].numel()
            elif node in needed and node not in environment:
                environment[node] = running.run_node(node)
        return [environment[n] for n in wanted]

    def _in_parts(
        self, wanted: list[fx.Node], given: Held, examples: int, kind: torch.dtype, instead: Others | None
    ) -> list[Tensor]:
        """The same by as many examples at once as it was traced with, the last of them as often as is needed."""
        rows = torch.arange(-(-examples // self.examples) * self.examples).clamp_max(examples - 1)
        axes = {node: self._axis(node) for node in (*wanted, *given)}
        sums = [node for node in wanted if axes[node] is None and node not in given]
        inner = (n for node in sums for n in ancestors(node, lambda n: n not in given))
        if any(axes.get(below) is not None for n in inner for below in n.all_input_nodes):
            raise ValueError("what is summed over examples is not told for other numbers of them")
        found = list[list[Tensor]]()
        for part in rows.split(self.examples):
            own = {n: v if (a := axes[n]) is None else v.index_select(a, part.to(v.device)) for n, v in given.items()}
            found.append(self.run(wanted, own, self.examples, kind, instead))
        made = list[Tensor]()
        for node, values in zip(wanted, zip(*found, strict=True), strict=True):
            axis = axes[node]
            whole = values[0] if axis is None else torch.cat(values, axis)
            each = 1 if axis is None else whole.shape[axis] // len(rows)
            made.append(whole if axis is None else whole.narrow(axis, 0, examples * each))
        return made

    def _axis(self, node: fx.Node) -> int | None:
        """The axis of a tensor that holds examples."""
        value = node.meta.get("val")
        shape = value.shape if isinstance(value, Tensor) else ()
        return next((k for k, s in enumerate(shape) if s and s % self.examples == 0), None)


class _Resized(fx.Interpreter):
    """Runs a graph with another number of examples, and in another float type: lengths that are multiples of the
    traced one follow it."""

    def __init__(
        self, code: fx.GraphModule, traced: int, examples: int, kinds: tuple[torch.dtype, torch.dtype]
    ) -> None:
        super().__init__(code, garbage_collect_values=False)
        self.traced, self.examples, self.kinds = traced, examples, kinds
        self.held_up = False

    def run_node(self, n: fx.Node) -> Any:
        if (name := operation(n)) == "detach":  # holds tensors for the way back; it must not hold up a derivative
            below = cast(fx.Node, n.args[0])
            if not self.held_up or below.op == "placeholder":
                return self.env[below]
        if name == "view" and isinstance(n.args[1], torch.dtype):  # bits are those of the type traced with
            given, (here, there) = cast(Tensor, self.env[cast(fx.Node, n.args[0])]), self.kinds
            bits = (given.to(here) if given.dtype is there else given).view(n.args[1])
            return bits.to(self._kind(bits.dtype))
        made = getattr(self, n.op)(n.target, *self.fetch_args_kwargs_from_env(n))  # without an interpreter's records
        if name in UNSET:  # what is written there later must not depend on what it holds
            made = torch.zeros_like(made)
        tensors = (self.env[one] for one in n.all_input_nodes)
        new = isinstance(made, Tensor) and not any(isinstance(t, Tensor) and t.is_floating_point() for t in tensors)
        return made.to(self._kind(made.dtype)) if new else made

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.view.default:  # strides may be others than they were traced with
            return args[0].reshape(args[1])
        made = super().call_function(target, args, kwargs)
        if target in NORMS and made[1].numel():  # there are none where running statistics are used
            spread, mean = torch.var_mean(args[0], NORMS[target](args), correction=0)
            return made[0], mean.view_as(made[1]), (spread + args[-1]).rsqrt().view_as(made[2])
        return made

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        still, each = places_in(n, self.traced), fx.node.map_aggregate
        made = [a if k in still or isinstance(a, Tensor) else each(a, self._resized) for k, a in enumerate(args)]
        return tuple(made), each(kwargs, self._resized) if kwargs else kwargs

    def _kind(self, kind: torch.dtype) -> torch.dtype:
        """The float type that stands for one, or for that of complex numbers of it."""
        here, there = self.kinds
        return there if kind is here else there.to_complex() if kind is here.to_complex() else kind

    def _resized(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return self._kind(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < abs(value) < 2**40:
            return value
        if value % self.traced == 0:
            return type(value)(value / self.traced * self.examples)
        share = isinstance(value, float) and abs(value) < 1 and 1 / value  # of a mean
        if share and abs(share - round(share)) < 1e-9 * abs(share) and round(share) % self.traced == 0:
            return value * self.traced / self.examples
        return value


def places_in(node: fx.Node, examples: int) -> range:
    """Which arguments of an operation are places along an axis that holds no examples, however large they are."""
    name = operation(node)
    if name in WINDOWED:
        return WINDOWED[name]
    first = 2 if name.endswith(("_backward", "_scatter")) else 1
    if name in ("select", "select_backward", "select_scatter"):
        return range(first, first + 2)
    if name in ("slice", "slice_backward", "slice_scatter", "split"):
        where = 2 if name == "split" else first
        axis = node.args[where] if len(node.args) > where else 0
        backward = name.endswith("_backward")
        sizes: Any = node.args[1] if backward else cast(fx.Node, node.args[0]).meta["val"].shape
        return range(first, len(node.args)) if int(sizes[axis]) % examples else range(0)
    return range(0)


def operation(node: fx.Node) -> str:
    """Name of what a node computes, ``mm`` or ``convolution_backward``; empty for what is given."""
    if node.op != "call_function":
        return ""
    packet = node.target.overloadpacket if isinstance(node.target, torch._ops.OpOverload) else node.target
    return str(packet.__name__ if callable(packet) else packet)


def ancestors(node: fx.Node, among: Callable[[fx.Node], bool] = lambda _: True) -> set[fx.Node]:
    """All that a node is computed from through some nodes, itself among it."""
    found, pending = set[fx.Node](), [node]
    while pending:
        one = pending.pop()
        if one not in found and among(one):
            found.add(one)
            pending += one.all_input_nodes
    return found


def draws(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def writes(node: fx.Node) -> bool:
    """Whether an operation writes into what it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def arguments(task: Task, batch: Batch) -> dict[str, object]:
    like = next(iter(task.parameters.values()))
    held: dict[str, object] = {f"p:{k}": v for k, v in task.parameters.items()}
    held |= {f"b:{k}": v.clone() for k, v in task.buffers.items()}  # a layer may write into one
    return held | {"inputs": batch.inputs, "labels": batch.labels, "seed": torch.ones((), dtype=like.dtype)}


def probe(task: Task, examples: int, seed: int = 0) -> Batch:
    """Random examples and labels."""
    data, generator = task.data, torch.Generator().manual_seed(seed)
    like = next(iter(task.parameters.values()))
    if data.is_text:
        inputs = torch.randint(data.vocabulary, (examples, *data.shape), generator=generator).to(task.like)
    else:
        shape = (examples, *data.shape)
        inputs = (data.low + data.range * torch.rand(shape, generator=generator, dtype=torch.float64)).to(like)
    return Batch(inputs, torch.arange(examples, device=like.device) % data.classes)


def blank(task: Task, examples: int) -> Batch:
    """Examples of zeros, where nothing of them is asked for."""
    like = next(iter(task.parameters.values()))
    inputs, labels = like.new_zeros(1, *task.data.shape), torch.zeros(1, dtype=torch.long, device=like.device)
    return Batch(inputs.expand(examples, *task.data.shape), labels.expand(examples))
