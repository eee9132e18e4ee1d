"""What the wiring of the model allows: blocks that can be run backwards."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import fx

from leakgauge.attacks.plain_model import PlainModel
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES
from leakgauge.task import Task

UNTRACEABLE = (
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    KeyError,
    IndexError,
    NotImplementedError,
    AssertionError,
    fx.proxy.TraceError,
)
"""What symbolic tracing raises on code that asks a value for its numbers."""

ADDS = (operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub, "add", "add_", "sub", "sub_")
SCALES = (operator.mul, operator.imul, operator.truediv, torch.mul, torch.div, "mul", "mul_", "div", "div_")
JOINS = (torch.cat, torch.concat, torch.concatenate, torch.stack)


@dataclass(frozen=True)
class AdditiveCoupling:
    """y = p + F(q), with q kept: p follows from y and q without a search.

    Attributes:
        name: of the node that adds, as traced.
        raw: nothing with parameters but other couplings lies between the input and p, q.
    """

    name: str
    raw: bool


def traced(task: Task) -> fx.Graph | str:
    """The model's graph, or why there is none."""
    module = task.module.rest if isinstance(task.module, PlainModel) else task.module
    try:
        return fx.symbolic_trace(module).graph
    except UNTRACEABLE as error:
        return str(error).splitlines()[0] if str(error) else type(error).__name__


def couplings(graph: fx.Graph) -> list[AdditiveCoupling]:
    """Pairs of additive (or affine) half-steps on two independent values, in the order of execution.

    y₁ = p + F(q), y₂ = q + G(y₁), where F reads p's partner only; or one half-step on two parts of one tensor that are
    joined again, the kept part with the changed one. A residual block is none: its branch reads what it adds to.
    """
    upstream = _upstream(graph.nodes)
    weighted = {n for n in graph.nodes if _holds_weights(n)}
    halves = [(node, kept, branch) for node in graph.nodes for kept, branch in _summands(node)]
    invertible: set[fx.Node] = set()
    found: dict[fx.Node, AdditiveCoupling] = {}
    # Halves that a coupling leaves depend on each other, but are two free values for the next one.
    streams: set[frozenset[fx.Node]] = set()
    for y1, p, branch in halves:
        for q, y2, inside in _partners(y1, p, branch, halves, upstream, streams):
            if not inside & weighted:
                continue
            streams.add(frozenset((y1, y2)))
            before = (upstream[p] | upstream[q] | {p, q}) & weighted
            found[y1] = AdditiveCoupling(y1.name, before <= invertible)
            invertible |= inside & weighted
            break
    return list(found.values())


Half = tuple[fx.Node, fx.Node, fx.Node]
"""A sum, the summand that is kept, and the branch that is added to it."""


def _partners(
    y1: fx.Node,
    p: fx.Node,
    branch: fx.Node,
    halves: list[Half],
    upstream: dict[fx.Node, set[fx.Node]],
    streams: set[frozenset[fx.Node]],
) -> Iterator[tuple[fx.Node, fx.Node, set[fx.Node]]]:
    """Values q that make (p, q) ↦ (y1, y2) a coupling, each with y2 and the nodes of the coupling's branches."""
    for y2, q, second in halves:
        free = _independent(p, q, upstream) or frozenset((p, q)) in streams
        if y2 is y1 or y1 not in upstream[second] | {second} or not free:
            continue
        first_inside, second_inside = _between(branch, q), _between(second, y1)
        if first_inside is not None and second_inside is not None:
            yield q, y2, first_inside | second_inside
    for q in upstream[branch]:
        joined = _same_source(p, q) and any(q in user.all_input_nodes for user in y1.users if user.target in JOINS)
        inside = _between(branch, q) if joined else None
        if inside is not None:
            yield q, q, inside


def _independent(p: fx.Node, q: fx.Node, upstream: dict[fx.Node, set[fx.Node]]) -> bool:
    return p is not q and p not in upstream[q] and q not in upstream[p]


def _between(branch: fx.Node, source: fx.Node) -> set[fx.Node] | None:
    """Nodes on the way from `source` to `branch`, if the branch is a function of it and of parameters alone."""
    waiting, inside, reached = [branch], set[fx.Node](), False
    while waiting:
        node = waiting.pop()
        if node is source:
            reached = True
        elif node.op == "placeholder":
            return None
        elif node not in inside:
            inside.add(node)
            waiting += node.all_input_nodes
    return inside if reached else None


def _holds_weights(node: fx.Node) -> bool:
    if node.op != "call_module":
        return node.op == "get_attr"
    root = node.graph.owning_module
    module = root.get_submodule(str(node.target)) if root is not None else None
    return module is None or any(True for _ in module.parameters())


def _upstream(nodes: Iterable[fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    above: dict[fx.Node, set[fx.Node]] = {}
    for node in nodes:
        above[node] = set().union(*({a} | above[a] for a in node.all_input_nodes))
    return above


def _summands(node: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
    """(kept, branch) both ways round for a node that adds two tensors; a factor on the kept one is looked through."""
    if node.op not in ("call_function", "call_method") or node.target not in ADDS:
        return []
    pair = [a for a in node.args[:2] if isinstance(a, fx.Node)]
    if len(pair) != 2:
        return []
    found = []
    for kept, branch in (pair, pair[::-1]):
        found.append((kept, branch))
        if kept.op in ("call_function", "call_method") and kept.target in SCALES:
            found += [(a, branch) for a in kept.args[:2] if isinstance(a, fx.Node)]
    return found


def _same_source(a: fx.Node, b: fx.Node) -> bool:
    """Two parts of one tensor: results of one split, or slices of one value."""
    return (
        a is not b
        and a.target is operator.getitem
        and b.target is operator.getitem
        and a.args[0] is b.args[0]
        and a.args[1] != b.args[1]
    )


@RULES.register("couplings", needs="the task; a model that torch.fx can trace")
@dataclass(frozen=True)
class Couplings:
    """Reversible blocks: additive or affine couplings of halves.

    Statistic: number of couplings between which and the input nothing else has weights, and half of the number of
    others.
    """

    needs: tuple[Part, ...] = (Part.TASK,)
    meaning: str = (
        "A chain of reversible blocks keeps the whole input: what leaves it, read off a linear layer's gradient, is "
        "computed back into the picture. Honest reasons: a reversible network chosen to save memory, or a flow."
    )

    def measure(self, received: Received) -> Measurement:
        assert received.task is not None
        graph = traced(received.task)
        if isinstance(graph, str):
            reason = Omission("model", f"cannot be traced ({graph}), so that its wiring is not seen")
            return Measurement(0.0, (), "Not judged.", (reason,))
        found = couplings(graph)
        raw = [c for c in found if c.raw]
        statistic = len(raw) + 0.5 * (len(found) - len(raw))
        evidence = f"{len(found)} couplings of two halves, {len(raw)} of them with nothing but couplings before them."
        return Measurement(statistic, tuple(c.name for c in sorted(found, key=lambda c: not c.raw)), evidence)
