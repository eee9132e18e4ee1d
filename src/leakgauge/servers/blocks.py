"""Building blocks of crafted networks."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import InputError, require
from leakgauge.servers.mkor.network import NetworkLayer, known_graph, linear_stack
from leakgauge.task import Task
from leakgauge.view.axes import cut
from leakgauge.view.products import Term
from leakgauge.view.trace import operation


def classifier_of(task: Task) -> NetworkLayer:
    """The linear layer that makes the logits. Raises `InputError` where there is none."""
    found = linear_stack(task)[-1]
    plain = not (found.relu or found.smooth)
    require(plain, "model", "ends in no linear layer that makes its logits", "give a model that ends in an nn.Linear")
    return found


def linear(before: int, after: int, task: Task, generator: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """Weights N(0, scale²/before) from `generator` in the task's dtype and on its device, biases zero."""
    like = next(iter(task.parameters.values()))
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after, device=like.device, dtype=like.dtype)
    drawn = torch.randn((after, before), generator=generator) * (scale / math.sqrt(before))
    with torch.no_grad():
        layer.weight.copy_(drawn)
        layer.bias.zero_()
    return layer


def rebuilt(task: Task, module: nn.Module, name: str) -> Task:
    """The task with another architecture around the same data format, mode and loss."""
    with torch.random.fork_rng(devices=[]):  # a model with dropout draws when it is tried out
        made = task.of_module(module, name=f"{name}({task.name})")
    return replace(made, stochastic=task.stochastic)


class Front(nn.Module):
    """x ↦ model(x + back(relu(first(x)))): a residual block on the flattened model input."""

    def __init__(self, first: nn.Linear, back: nn.Linear, model: nn.Module) -> None:
        super().__init__()
        self.first, self.back, self.model = first, back, model

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        moved: Tensor = self.back(self.first(x.flatten(1)).relu())
        return self.model(x + moved.view_as(x))  # type: ignore[no-any-return]


def fronted(task: Task, rows: int, name: str, generator: torch.Generator) -> Task:
    """The task behind a `Front` of `rows` units, random as yet; its way back is small."""
    d = math.prod(task.data.shape)
    first, back = linear(d, rows, task, generator), linear(rows, d, task, generator, 0.1)
    return rebuilt(task, Front(first, back, task.module_copy()), name)


HINT = "use a fully connected model (mlp), or a server that changes the architecture (imprint-block, linear-first)"


@dataclass(frozen=True)
class ReluPair:
    """Names of a linear layer that reads the input, and of the weight behind its ReLU."""

    weight: str
    bias: str
    second: str


def relu_pair(task: Task) -> ReluPair:
    """The first such pair in the gradient's graph.

    Raises:
        InputError: no linear layer with bias reads the input, or none of those is followed by ReLU and a linear layer.
    """
    graph = known_graph(task, HINT)
    rows = [p for p in graph.products if p.weight and _rows_read_in_order(p.terms[0])]
    read = {p: graph.same[p.activation.node] for p in rows if p.activation is not None}
    firsts = [
        (p.weight, shift.weight)
        for group in graph.first
        for p in group.products
        for shift in group.shifts
        if p in rows and read[p] is graph.inputs and shift.terms[0].signal.node is p.terms[0].signal.node
    ]
    for weight, bias in firsts:
        for second in rows:
            behind = operation(read[second]).rstrip("_") == "relu"
            alone = behind and graph.colours.parameters[read[second]] == {weight, bias}
            if weight and bias and second.weight and alone:
                return ReluPair(weight, bias, second.weight)
    problem = "has no linear layer with bias that reads the input"
    if firsts:
        problem = f"has no ReLU and second linear layer behind '{firsts[0][0]}', which reads the input"
    raise InputError("model", problem, HINT)


def _rows_read_in_order(term: Term) -> bool:
    """Whether a weight has a row for each unit, and the row's entries are in the order of what it reads."""
    given, kinds = term.activation, term.kinds
    if given is None or given.hot or given.windows is not None or kinds[0][1] != "signal":
        return False
    own = [atom for axis in cut(given.dims)[1:] for atom in axis]
    return own == [atom for atom, kind in kinds if kind == "activation"]
