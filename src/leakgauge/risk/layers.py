"""Equations and unknowns of a model, layer by layer, and the highest rank that its Jacobian can have."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from leakgauge.task import Task, cross_entropy
from leakgauge.view.graph import Graph, OuterSum, followed
from leakgauge.view.trace import probe


def low_rank(rows: int, columns: int, rank: int) -> int:
    """Dimension of the matrices of at most that rank: r·(rows + columns − r)."""
    r = min(rows, columns, rank)
    return r * (rows + columns - r)


def highest_rank(
    *, rows: int, columns: int, hidden: int, inputs: int, later: int, batch: int, free: int = 0, bias: bool = True
) -> int:
    """The largest rank that the Jacobian of an update can have, for a network that reads its input in one layer.

    Let z be what that layer gives for the batch. Everything but ∂L/∂W of it depends on the examples through z alone:
    the later layers' gradients (`later` equations), ∂L/∂b, and also ∂L/∂W·Wᵀ = Σ δ zᵀ, which is rows·min(rows,
    columns) numbers of ∂L/∂W. So at most R = min(B·q + free, later + bias + rows·min(rows, columns))
    directions are seen through z, and the rest of ∂L/∂W adds rows·(columns − min(rows, columns)).

    Derived here. For a linear layer it is n₁·(d + B − n₁) below n₁ = B (and n₁ ≤ d), so that (B − n₁)·(d − n₁)
    directions stay open: n₁ ≥ B is needed. That it is enough is numerical only. `free`: unknowns besides the examples,
    B·(n₂ − 1) for soft labels.
    """
    repeated = rows * min(rows, columns)
    seen = min(batch * hidden + free, later + rows * bias + repeated)
    return min(batch * inputs + free, seen + rows * columns - repeated)


SUMS_TO_ZERO = 1e-5  # share of the error signals' length that their sum over the outputs of a soft-max may have


@dataclass(frozen=True, kw_only=True)
class LayerCount:
    """What one layer's gradient gives, and what enters the layer."""

    name: str  #: of the module that holds its weight, or of the weight
    kind: str  #: ``linear`` or ``convolution``; empty for parameters that are used in other ways.
    equations: int
    #: of these at most so many say something of their own, as ∂L/∂[W b] is a sum of one rank-one term an example and
    #: position
    independent: int
    unknowns: int  #: numbers of the batch that enter it; for the first layer the examples themselves.


@dataclass(frozen=True, kw_only=True)
class ModelCount:
    """All layers in the order in which they run."""

    layers: tuple[LayerCount, ...]
    gate: bool  #: whether the input reaches the loss through the first layer alone
    unknowns: int  #: numbers in the examples, and B·(n₂ − 1) for soft labels
    bound: int  #: a rank that the update's Jacobian cannot exceed

    @property
    def equations(self) -> int:
        return sum(layer.equations for layer in self.layers)


Counted = tuple[LayerCount, tuple[int, ...], int, bool]
"""A layer, (groups, outputs, inputs) of its weight, positions of an example, and whether it has a bias."""


def _counted(graph: Graph, product: OuterSum, shifts: tuple[OuterSum, ...], batch: int) -> Counted | None:
    """A weight that one tensor is multiplied with; `None` of any other."""
    weight, activation = product.weight, product.activation
    if weight is None or activation is None or activation.hot or len(product.terms) > 1 or product.shape[0] > 1:
        return None
    signal, (_, outputs, inputs) = product.terms[0].signal, product.shape
    biased = any(s.weight and s.terms[0].signal.node is signal.node and s.shape[1] == outputs for s in shifts)
    rows = graph.rows(product.terms[0], signal, graph.task, probe(graph.task, 2))[0]
    total = rows.sum(1).abs().max() <= SUMS_TO_ZERO * rows.abs().sum(1).max()
    final = graph.task.loss is cross_entropy and len(rows) == 2 and bool(total)
    entries, positions = outputs * (inputs + biased), len(rows) // 2
    owner, _, last = weight.rpartition(".")
    layer = LayerCount(
        name=(owner or "(model)") if last == "weight" else weight,
        kind="convolution" if activation.windows else "linear",
        equations=entries,
        independent=min(entries, low_rank(outputs - final, inputs + biased, batch * positions)),
        unknowns=batch * (activation.node.meta["val"].numel() // graph.trace.examples),
    )
    return layer, product.shape, positions, biased


def count_layers(task: Task, batch: int, *, soft_labels: bool = False) -> ModelCount:
    """Counts in the graph of the gradient. Parameters that are used several times, or that no tensor is multiplied
    with, are given all their entries."""
    graph = followed(task)
    layers, first = _layers(graph, batch) if isinstance(graph, Graph) else ([], None)
    missing = sum(v.numel() for v in task.parameters.values()) - sum(layer.equations for layer in layers)
    if missing:
        layers.append(LayerCount(name="others", kind="", equations=missing, independent=missing, unknowns=0))
    free = batch * (task.data.classes - 1) if soft_labels else 0  # they sum to one
    inputs = int(torch.Size(task.data.shape).numel())
    bound = min(batch * inputs + free, sum(layer.independent for layer in layers))
    if first is not None:
        layer, (_, rows, columns), positions, biased = first
        hidden, later = rows * positions, sum(other.independent for other in layers) - layer.independent
        sharper = highest_rank(
            rows=rows, columns=columns, hidden=hidden, inputs=inputs, later=later, batch=batch, free=free, bias=biased
        )
        bound = min(bound, sharper)
    return ModelCount(layers=tuple(layers), gate=first is not None, unknowns=batch * inputs + free, bound=bound)


def _layers(graph: Graph, batch: int) -> tuple[list[LayerCount], Counted | None]:
    """Layers in the order of the network, and the one that all of the input goes through."""
    every = [(group, _counted(graph, p, group.shifts, batch)) for group in graph.groups for p in group.products]
    readers = [layer for group, layer in every if graph.inputs in group.hidden]
    gate = readers[0] if len(readers) == 1 and _ends(graph) == 1 else None
    return [layer[0] for _, layer in every if layer is not None], gate


def _ends(graph: Graph) -> int:
    """Affine maps of the input, parameters in them or not, that anything else goes on from."""

    def goes_on(node: fx.Node) -> bool:
        after = [u for u in node.users if u in graph.forward]
        return node is graph.trace.outputs or any(graph.bases.get(u) is not graph.inputs for u in after)

    own = {graph.same[n] for n in graph.forward if graph.bases.get(n) is graph.inputs and goes_on(n)}
    return len(own) + (0 if all(graph.colours.parameters[n] for n in own) else 1)
