"""A training step's gradient as a graph of elementary tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN
from leakgauge.step.training import as_it_was
from leakgauge.task import Task
from leakgauge.view.derivatives import COPIES, PARTS, plain_operations

PRIMES = (47, 43, 41, 37, 31, 29, 53, 59, 61, 67)
"""Numbers of examples to trace with: where no other length is a multiple of one, an axis that is holds examples."""
FEW = (5, 7, 11, 13, 3)
"""The same where the examples' values decide, so that the step must really run."""
WINDOWED = {
    "convolution": range(3, 8),
    "convolution_backward": range(4, 9),
    "constant_pad_nd": range(1, 2),
    "roll": range(1, 2),
}
"""Arguments that are steps and widths along axes without examples."""
ROUNDED = 1e-12
"""Relative error in double precision up to which two values are the same."""
FILLED = {"new_zeros", "zeros_like", "ones_like", "full_like", "empty_like", "new_empty", "new_full", "new_ones"}
"""They take a tensor for its shape alone."""
UNSET = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
"""They give memory as it is."""


@dataclass(frozen=True, eq=False)
class TracedGradient:
    """What one gradient of a task computes.

    Attributes:
        code: its placeholders are parameters, buffers, inputs, labels and the derivative of the loss by itself; it
            returns outputs, then gradients.
        nodes: its placeholders by name: ``p:`` a parameter, ``b:`` a buffer, ``inputs``, ``labels``, ``seed``.
        gradients: where each parameter's gradient is; `None` where the loss does not depend on it.
        outputs: what the loss is given; `None` where the task does not say.
        penalised: what each of the task's penalties is given.
        examples: how many it was traced with.
        written: parameters whose gradients are written, piece by piece, into what was a constant. Only zeros for a
            derivative, as of a rounding, are constants otherwise.
        affine: of the operations on examples alone those that were tried and are affine in them.
    """

    code: fx.GraphModule
    nodes: Mapping[str, fx.Node]
    gradients: Mapping[str, fx.Node | None]
    outputs: fx.Node | None
    penalised: tuple[fx.Node, ...]
    examples: int
    written: frozenset[str] = frozenset()
    affine: frozenset[fx.Node] = frozenset()

    def evaluate(
        self,
        wanted: list[fx.Node],
        task: Task,
        batch: Batch,
        *,
        given: Mapping[fx.Node, Tensor] | None = None,
        instead: Mapping[fx.Node, Instead] | None = None,
    ) -> list[Tensor]:
        """Values of nodes at a batch of any number of examples, the nodes `given` held at theirs; see `run`."""
        held = _arguments(task, batch)
        environment = {n: held[name] for name, n in self.nodes.items()} | dict(given or {})
        return self.run(wanted, environment, len(batch), next(iter(task.parameters.values())).dtype, instead)

    def run(
        self,
        wanted: list[fx.Node],
        given: Mapping[fx.Node, Any],
        examples: int,
        kind: torch.dtype,
        instead: Mapping[fx.Node, Instead] | None = None,
    ) -> list[Tensor]:
        """Values of nodes where others are given.

        Args:
            kind: the float type of what is given.
            instead: what stands for some nodes. Only what `wanted` are computed from forward is run then, and it
                holds up derivatives where the network does.
        """
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


@dataclass(frozen=True, eq=False)
class Instead:
    """What stands for a node: a function of nodes. As many examples as it returns are taken to go on behind it."""

    given: tuple[fx.Node, ...]
    value: Callable[..., Tensor]


class _Resized(fx.Interpreter):
    """Runs a graph with another number of examples, and in another float type: lengths that are multiples of the
    traced one follow it."""

    def __init__(
        self, code: fx.GraphModule, traced: int, examples: int, kinds: tuple[torch.dtype, torch.dtype]
    ) -> None:
        super().__init__(code)
        self.traced, self.examples, self.kinds = traced, examples, kinds
        self.held_up = False

    def run_node(self, n: fx.Node) -> Any:
        if operation(n) == "detach":  # how tensors are held for the way back; it must not hold up a derivative
            below = cast(fx.Node, n.args[0])
            if not self.held_up or below.op == "placeholder":
                return self.env[below]
        made = super().run_node(n)
        given = (self.env[one] for one in n.all_input_nodes)
        new = isinstance(made, Tensor) and not any(isinstance(t, Tensor) and t.is_floating_point() for t in given)
        return made.to(self._kind(made.dtype)) if new else made

    def fetch_args_kwargs_from_env(self, n: fx.Node) -> tuple[Any, Any]:
        args, kwargs = super().fetch_args_kwargs_from_env(n)
        still = places_in(n, self.traced)
        args = tuple(a if k in still else fx.node.map_aggregate(a, self._resized) for k, a in enumerate(args))
        return args, fx.node.map_aggregate(kwargs, self._resized)

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
    """Whether it draws at random."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def writes(node: fx.Node) -> bool:
    """Whether an operation writes into what it is given."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _last_use(node: fx.Node) -> bool:
    """Whether what it writes into is no view of another tensor, and nothing reads it afterwards: a counter, say."""
    into = node.args[0] if node.args else None
    if not isinstance(into, fx.Node) or node.users or list(into.users)[-1] is not node:
        return False
    made = into.target._schema.returns if isinstance(into.target, torch._ops.OpOverload) else ()
    return into.op in ("placeholder", "call_function") and all(r.alias_info is None for r in made)


def _arguments(task: Task, batch: Batch) -> dict[str, object]:
    like = next(iter(task.parameters.values()))
    held: dict[str, object] = {f"p:{k}": v for k, v in task.parameters.items()}
    held |= {f"b:{k}": v.clone() for k, v in task.buffers.items()}  # a layer may write into one
    return held | {"inputs": batch.inputs, "labels": batch.labels, "seed": torch.ones((), dtype=like.dtype)}


def probe(task: Task, examples: int, seed: int = 0) -> Batch:
    """Random examples and labels."""
    data, generator = task.data, torch.Generator().manual_seed(seed)
    like = next(iter(task.parameters.values()))
    if data.is_text:
        inputs = torch.randint(data.vocabulary, (examples, *data.shape), generator=generator).to(like)
    else:
        shape = (examples, *data.shape)
        inputs = (data.low + data.range * torch.rand(shape, generator=generator, dtype=torch.float64)).to(like)
    return Batch(inputs, torch.arange(examples, device=like.device) % data.classes)


def blank(task: Task, examples: int) -> Batch:
    """Examples of zeros, where nothing of them is asked for."""
    like = next(iter(task.parameters.values()))
    inputs, labels = like.new_zeros(1, *task.data.shape), torch.zeros(1, dtype=torch.long, device=like.device)
    return Batch(inputs.expand(examples, *task.data.shape), labels.expand(examples))


def trace(task: Task, *, one_by_one: bool = False) -> TracedGradient:
    """Traces without computing; where a value decides what is computed, with random examples.

    Args:
        one_by_one: as a model that is given its examples one by one, all at once, for one with a loop over them.
    """
    count = _examples(task, PRIMES)
    if one_by_one:
        module = task.module_copy()
        forward = module.forward
        module.forward = lambda x: torch.vmap(lambda row: forward(row[None])[0], randomness="different")(x)
        task = replace(task, module=module)
    try:
        found = _traced(task, count, "fake")
    except FOREIGN:  # values decide, or an operation says nothing of its shapes
        found = _traced(task, _examples(task, FEW), "real")
    return found if task.data.is_text else replace(found, affine=_straighten(found, task))


KEPT = {"sub", "div", "round", "_to_copy", "detach", "alias", "clone", "rand_like", "randn_like", "native_dropout"}
"""Operations that stay where they are: those that make what the model is called with, copies and draws."""


def _straighten(traced: TracedGradient, task: Task) -> frozenset[fx.Node]:
    """Takes out operations on the examples alone that leave every example of the data's range as it is, such as a clamp
    to that range or a transform and its inverse, and finds those that are affine there, whatever they are called."""
    alone = {node for name, node in traced.nodes.items() if name == "inputs" or name.startswith("b:")}
    moved, others, unset = [traced.nodes["inputs"]], dict[fx.Node, list[fx.Node]](), set[fx.Node]()
    for node in traced.code.graph.nodes:
        given = [n for n in node.all_input_nodes if n.op != "get_attr"]
        if node.op == "call_function" and alone.issuperset(given) and (given or not draws(node)):
            alone.add(node)
            if operation(node) in UNSET or not unset.isdisjoint(given):  # it may hold anything, what it is to hold too
                unset.add(node)
                continue
            value, own = node.meta.get("val"), any(n in given for n in moved)
            floats = isinstance(value, Tensor) and value.is_floating_point() and value.layout is torch.strided
            if own and floats and value.numel() and operation(node) not in KEPT:
                values_of = ((n, n.meta.get("val")) for n in reversed(moved))
                others[node] = [
                    n
                    for n, v in values_of
                    if isinstance(v, Tensor) and (v.shape, v.dtype) == (value.shape, value.dtype)
                ]
            moved += [node] if own else []
    for node, like in list(others.items()):  # as a whole only where parameters come in: memory of many examples
        if alone.issuperset(node.users):
            others[node] = [n for n in like if n in node.all_input_nodes]
            if not others[node]:
                del others[node]
    if not others:
        return frozenset()
    double = task.to(torch.empty((), dtype=torch.float64))
    batches = [probe(double, traced.examples, seed) for seed in range(3)]
    batches[0].inputs[0], batches[0].inputs[1] = task.data.low, task.data.high
    batches[2].inputs[:] = (batches[0].inputs + batches[1].inputs) / 2
    wanted = list(dict.fromkeys([n for node, given in others.items() for n in (node, *given)]))
    values = [dict(zip(wanted, traced.evaluate(wanted, double, batch), strict=True)) for batch in batches]
    straight, affine = dict[fx.Node, fx.Node](), set[fx.Node]()
    for node, given in others.items():
        one, two, middle = (each[node] for each in values)
        error = ROUNDED * max(float(one.abs().max()), float(two.abs().max()))
        if not one.ndim or bool((one == one[:1]).all()):  # what examples give their shape alone is the same for all
            continue
        if bool(((one + two) / 2 - middle).abs().max() <= error):
            affine.add(node)
        same = (n for n in given if all(bool((v[n] - v[node]).abs().max() <= error) for v in values))
        below = next(same, None)
        if below is not None:
            straight[node] = straight.get(below, below)
            node.replace_all_uses_with(straight[node])
    return frozenset(affine - straight.keys())


def _examples(task: Task, among: tuple[int, ...]) -> int:
    tensors = [*task.parameters.values(), *task.buffers.values()]
    lengths = {length for t in tensors for length in t.shape} | set(task.data.shape) | {task.outputs}
    return next((p for p in among if all(length == 0 or length % p for length in lengths)), among[0])


def _traced(task: Task, count: int, mode: Literal["real", "fake"]) -> TracedGradient:
    seen, parts = list[Tensor](), list[Tensor]()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(outputs)
        return task.loss(outputs, labels)

    def kept(penalty: Callable[[Tensor], Tensor], of: Tensor) -> Tensor:
        parts.append(of)
        return penalty(of)

    penalties = tuple((part, partial(kept, penalty)) for part, penalty in task.penalties)
    step = replace(task, loss=loss, penalties=penalties, stochastic=False)  # what is drawn is drawn in the graph
    held = _arguments(task, probe(task, count))
    names = list(held)

    def gradient(*tensors: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor | None]]:
        seen.clear()
        parts.clear()
        given = dict(zip(names, tensors, strict=True))
        leaves = {k: given[f"p:{k}"].detach().requires_grad_() for k in task.parameters}
        buffers = {k: given[f"b:{k}"] for k in task.buffers}
        with torch.enable_grad():
            value = step(leaves, buffers, Batch(given["inputs"], given["labels"]))[0]
        found = torch.autograd.grad(value, list(leaves.values()), given["seed"], allow_unused=True)
        return seen[:1], parts[: len(penalties)], list(found)

    def made(function: Callable[..., Any], rules: dict[Any, Callable[..., Any]]) -> fx.GraphModule:
        fake = mode == "fake"
        return make_fx(function, rules, mode, _allow_non_fake_inputs=True, _error_on_data_dependent_ops=fake)(
            *held.values()
        )

    with plain_operations(), as_it_was(task.module), torch.random.fork_rng(devices=[]):
        code = made(gradient, PARTS)
        written = _written(code.graph, names.index("seed"), list(task.parameters))
        if any(writes(node) and not _last_use(node) for node in code.graph.nodes):
            code = made(torch.func.functionalize(code), COPIES)
    nodes = list(code.graph.nodes)
    for node in nodes:
        if node.op == "get_attr":  # a constant, of which older versions of torch say nothing
            node.meta.setdefault("val", getattr(code, str(node.target)))
    placeholders = [n for n in nodes if n.op == "placeholder"]
    outputs, penalised, gradients = cast(tuple[list[fx.Node], list[fx.Node], list[fx.Node | None]], nodes[-1].args[0])
    return TracedGradient(
        code,
        dict(zip(names, placeholders, strict=True)),
        dict(zip(task.parameters, gradients, strict=True)),
        outputs[0] if outputs else None,
        tuple(penalised),
        count,
        written,
    )


def _written(graph: fx.Graph, seed: int, names: list[str]) -> frozenset[str]:
    """See `TracedGradient.written`; `seed` is the place of the loss's derivative among what is given."""
    behind, writes_there = {[n for n in graph.nodes if n.op == "placeholder"][seed]}, False
    for node in graph.nodes:
        given = () if operation(node) in FILLED else node.all_input_nodes
        if node.op != "output" and not behind.isdisjoint(given):
            into = node.args[0] if operation(node) == "copy_" else None
            writes_there |= into is not None and into not in behind and node.args[1] in behind
            behind.add(node)
    gradients = cast(tuple[Any, Any, list[fx.Node | None]], list(graph.nodes)[-1].args[0])[2]
    found = (k for k, g in zip(names, gradients, strict=True) if g is not None and g not in behind)
    return frozenset(found if writes_there else ())
