"""A step of the search as a flat list of operations, recorded once and repeated without Python or autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from leakgauge.tensors import Tensors

Step = Callable[[Tensors, Tensor], tuple[Tensor, Tensor, Tensors]]
"""Variables of all restarts, the prior's factor → totals, data terms and gradients of the total."""

Flat = Callable[[Tensors, Tensor], list[Tensor]]


def captured(step: Step, point: Tensors, factor: Tensor) -> Step | None:
    """`step` recorded at `point`: the same numbers in less time; `None` where it cannot be recorded.

    What no result rests on is left out: torch's second derivative of a convolution always computes that of the
    weights too, one pass in eight. What rests on constants alone, as the length of the observed update does, is
    computed once. On a GPU the list is replayed as a CUDA graph.

    A step is not recorded that draws at random, that looks at values (a branch, a number out of a tensor), or whose
    record answers otherwise at `point` than the step does.
    """
    names = list(point)

    def flat(given: Tensors, weight: Tensor) -> list[Tensor]:
        total, data, slopes = step(given, weight)
        return [total, data, *(slopes[name] for name in names)]

    expected = flat(point, factor)
    try:
        record = make_fx(flat)(point, factor)
    except (RuntimeError, TypeError, ValueError):  # torch's three words for a value that is asked for
        return None
    if any(_draws(node) for node in record.graph.nodes):
        return None
    record.graph.eliminate_dead_code()
    with torch.no_grad():
        _fold(record)
    record.recompile()
    replay = _graphed(record, point, factor) if factor.is_cuda else record

    def repeated(given: Tensors, weight: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        with torch.no_grad():
            total, data, *slopes = replay({name: given[name] for name in names}, weight)
        return total, data, dict(zip(names, slopes, strict=True))

    total, data, slopes = repeated(point, factor)
    answers = [total, data, *slopes.values()]
    same = all(torch.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(answers, expected, strict=True))
    return repeated if same else None


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _changes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _fold(record: fx.GraphModule) -> None:
    """Operations on constants alone are done now, but for those on memory that some operation writes into."""
    graph, written = record.graph, set[fx.Node]()
    for node in reversed(graph.nodes):
        if _changes(node) or node in written:
            written |= set(node.all_input_nodes)
    values: dict[fx.Node, Tensor] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            value = getattr(record, str(node.target))
            if isinstance(value, Tensor) and node not in written:
                values[node] = value
            continue
        inputs = node.all_input_nodes
        foldable = node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)
        if not (foldable and inputs and all(i in values for i in inputs)) or node in written or _changes(node):
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
        value = node.target(*args, **kwargs)
        if not isinstance(value, Tensor):
            continue
        values[node] = value
        if any(user not in values for user in node.users):
            name = f"_folded_{len(values)}"
            record.register_buffer(name, value, persistent=False)
            with graph.inserting_before(node):
                constant = graph.get_attr(name)
            node.replace_all_uses_with(constant)
            values[constant] = value
    graph.eliminate_dead_code()


def _graphed(record: Flat, point: Tensors, factor: Tensor) -> Flat:
    """As a CUDA graph over inputs and outputs of its own."""
    given, weight = {name: value.detach().clone() for name, value in point.items()}, factor.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):  # lets libraries choose and allocate before the recording
            record(given, weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        answers = record(given, weight)

    def replay(point: Tensors, factor: Tensor) -> list[Tensor]:
        for name, value in point.items():
            given[name].copy_(value)
        weight.copy_(factor)
        graph.replay()
        return [answer.clone() for answer in answers]

    return replay
