"""Makes the graph of a task's gradient."""

from collections.abc import Callable
from dataclasses import replace
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
from leakgauge.view.trace import FILLED, ROUNDED, UNSET, TracedGradient, arguments, draws, operation, probe, writes

PRIMES = (47, 43, 41, 37, 31, 29, 53, 59, 61, 67)
"""Numbers of examples to trace with: where no other length is a multiple of one, an axis that is holds examples."""
FEW = (5, 7, 11, 13, 3)  # the same where the examples' values decide, so that the step must really run


def trace(task: Task, *, one_by_one: bool = False) -> TracedGradient:
    """Traces without computing; where a value decides what is computed, with random examples. `one_by_one`: as a model
    that is given its examples one by one, all at once, for one with a loop over them."""
    count = _examples(task, PRIMES)
    if one_by_one:
        module = task.module_copy()
        forward = module.forward
        module.forward = lambda x: torch.vmap(lambda row: forward(row[None])[0], randomness="different")(x)
        task = replace(task, module=module)
    try:
        found = _traced(task, count, "fake")
    except FOREIGN:  # values decide, or an operation says nothing of its shapes
        found = replace(_traced(task, _examples(task, FEW), "real"), by_values=True)
    if task.data.is_text:
        return found
    found = replace(found, affine=_straighten(found, task))
    return replace(found, still=_still(found, task))


def _still(traced: TracedGradient, task: Task) -> frozenset[fx.Node]:
    """Whole numbers and truth values that are made of examples and are the same whatever these hold: lengths, places in
    a pool of one, tests for what is no number."""
    seed, inputs, alone = traced.nodes["seed"], traced.nodes["inputs"], list[fx.Node]()
    behind, moved = {seed}, {inputs}
    for node in traced.code.graph.nodes:
        behind |= {node} if behind.intersection(node.all_input_nodes) else set()
        moved |= {node} if moved.intersection(node.all_input_nodes) else set()
        value = node.meta.get("val")
        if node in moved and node not in behind and isinstance(value, Tensor) and node.op == "call_function":
            alone += [] if value.is_floating_point() or value.is_complex() or draws(node) else [node]
    if not alone or sum(node.meta["val"].numel() for node in alone) > FEWEST:
        return frozenset()
    data, values = task.data, list[list[Tensor]]()
    try:
        for draw, share in enumerate((1.0, 1.0, 0.1, 0.0)):  # bright and dark ones, and some without contrast
            batch = probe(task, 3, draw)
            batch.inputs[:2] = data.low + share * (batch.inputs[:2] - data.low)
            values.append(traced.evaluate(alone, task, batch))
    except FOREIGN:
        return frozenset()
    return frozenset(
        n for n, one, *others in zip(alone, *values, strict=True) if all(torch.equal(one, v) for v in others)
    )


FEWEST = 2**21  # whole numbers that a network makes of examples, of which more are not looked at
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
                kind, values_of = (value.shape, value.dtype), ((n, n.meta.get("val")) for n in reversed(moved))
                others[node] = [n for n, v in values_of if isinstance(v, Tensor) and (v.shape, v.dtype) == kind]
            moved += [node] if own else []
    for node, like in list(others.items()):  # as a whole only where parameters come in: memory of many examples
        if alone.issuperset(node.users):
            others[node] = [n for n in like if n in node.all_input_nodes]
            if not others[node]:
                del others[node]
    if not others:
        return frozenset()
    double = task.to(torch.empty((), dtype=torch.float64))
    wanted = list(dict.fromkeys([n for node, given in others.items() for n in (node, *given)]))

    def tried(count: int) -> list[dict[fx.Node, Tensor]]:
        batches = [probe(double, count, seed) for seed in range(3)]
        batches[0].inputs[0], batches[0].inputs[1] = task.data.low, task.data.high
        batches[2].inputs[:] = (batches[0].inputs + batches[1].inputs) / 2
        return [dict(zip(wanted, traced.evaluate(wanted, double, batch), strict=True)) for batch in batches]

    try:
        values = tried(max(PRIMES[0], traced.examples))  # what is sorted, say, stays in place of few examples
    except FOREIGN:
        values = tried(traced.examples)
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
    held = arguments(task, probe(task, count))
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
        graph = make_fx(function, rules, mode, _allow_non_fake_inputs=True, _error_on_data_dependent_ops=mode == "fake")
        return graph(*held.values())

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
            while isinstance(into, fx.Node) and (base := _whole(into)) is not None:  # all of that is written
                behind.add(base)
                into = base
    gradients = cast(tuple[Any, Any, list[fx.Node | None]], list(graph.nodes)[-1].args[0])[2]
    found = (k for k, g in zip(names, gradients, strict=True) if g is not None and g not in behind)
    return frozenset(found if writes_there else ())


def _whole(node: fx.Node) -> fx.Node | None:
    """The tensor of which a node is a view with as many entries."""
    base, made = node.args[0] if node.args else None, getattr(node.target, "_schema", None)
    if not isinstance(base, fx.Node) or made is None or all(r.alias_info is None for r in made.returns):
        return None
    values = [n.meta.get("val") for n in (node, base)]
    sizes = {v.numel() for v in values if isinstance(v, torch.Tensor)}
    return base if len(sizes) == 1 and all(isinstance(v, torch.Tensor) for v in values) else None


def _last_use(node: fx.Node) -> bool:
    """Whether what it writes into is no view of another tensor, and nothing reads it afterwards: a counter, say."""
    into = node.args[0] if node.args else None
    if not isinstance(into, fx.Node) or node.users or list(into.users)[-1] is not node:
        return False
    made = into.target._schema.returns if isinstance(into.target, torch._ops.OpOverload) else ()
    return into.op in ("placeholder", "call_function") and all(r.alias_info is None for r in made)
