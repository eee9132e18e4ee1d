"""How strongly each example drives each row of each layer, and what reaches it: read off the gradient's graph."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor, fx

from leakgauge.errors import FOREIGN, said
from leakgauge.inspection.matrices import Omission
from leakgauge.task import Batch, Mode, Task
from leakgauge.view.axes import cut
from leakgauge.view.graph import Graph, OuterSum, traced
from leakgauge.view.products import Term
from leakgauge.view.trace import probe

VALUES_AT_ONCE = 2**20
"""Input values per pass; bounds memory (VGG16 at 224 px: six examples at a time)."""
ALONE = 0.99
"""Share of a row's total drive from which it belongs to one example."""
PROBED = 3
"""Random examples on which the graph must answer as the model does."""
FITTED = 1e-7
"""Relative residual below which an example counts as fitted perfectly: float32 rounds its probability to one."""


@dataclass(frozen=True, eq=False)
class LayerDrive:
    """What one layer's weight gradient is made of, example by example.

    The loss gradient at the model's answer is scaled to length one for every example first, so that an
    example that the model fits well counts like any other.

    Attributes:
        name: of the layer.
        linear: it multiplies what it is given; otherwise it slides over it.
        first: it reads what the first linear layer reads.
        head: its output is the model's answer.
        rows: length of the gradient at each output unit or channel, over all positions.
        inputs: length of what the layer reads.
    """

    name: str
    linear: bool
    first: bool
    head: bool
    rows: Float[Tensor, "n rows"]
    inputs: Float[Tensor, " n"]

    @property
    def gain(self) -> Float[Tensor, " n"]:
        """‖δ‖·‖a‖ per example: the length of its weight gradient for a linear layer, an upper bound for others."""
        lengths: Tensor = self.rows.norm(dim=1)
        return lengths * self.inputs


@dataclass(frozen=True, eq=False)
class Drives:
    """All layers of one model on one batch, in the order in which they run.

    Attributes:
        residuals: length of the loss gradient at the answer, before it is scaled.
        finite: examples whose answer, loss and gradients are finite numbers.
        remarks: what the measurement could not cover, each with the reason.
    """

    layers: tuple[LayerDrive, ...]
    residuals: Float[Tensor, " n"]
    finite: Bool[Tensor, " n"]
    remarks: tuple[Omission, ...]

    @property
    def erring(self) -> Bool[Tensor, " n"]:
        """Finite examples that the loss moves at all: those with at least `FITTED` of the largest residual."""
        return self.finite & (self.residuals > FITTED * self.residuals.max())

    @property
    def hidden(self) -> tuple[LayerDrive, ...]:
        """Layers below the one that answers."""
        return tuple(layer for layer in self.layers if not layer.head)


def driven(rows: Float[Tensor, "n rows"]) -> Bool[Tensor, "n rows"]:
    """Which example drives which row: by more than (1 − ALONE) of the row's total, in rows that are driven at all."""
    total = rows.sum(0)
    live = total > 1e-6 * total.max()
    return (rows > (1 - ALONE) * total) & live


_QUIET: weakref.WeakKeyDictionary[Task, Task] = weakref.WeakKeyDictionary()


def in_eval(task: Task) -> Task:
    """The same task in eval mode: the same one for all rules, so that its network is traced once."""
    if task.mode is Mode.EVAL:
        return task
    if task not in _QUIET:
        _QUIET[task] = task.in_eval()
    return _QUIET[task]


def at_once(task: Task) -> int:
    """Examples per pass."""
    return max(1, VALUES_AT_ONCE // max(1, math.prod(task.data.shape)))


@dataclass(frozen=True, eq=False)
class GraphLayer:
    """A layer of the graph: what multiplies an activation, by the name of its first parameter."""

    graph: Graph
    product: OuterSum

    @property
    def name(self) -> str:
        parameter = self.product.weight or self.product.parameters[0]
        return parameter.rpartition(".")[0] or parameter

    @property
    def linear(self) -> bool:
        """Whether it slides over nothing."""
        operands = [o for t in self.product.terms for o in (t.signal, t.activation)]
        return all(o is None or o.windows is None for o in operands)

    @property
    def reads(self) -> tuple[fx.Node, ...]:
        """The tensors that it is given."""
        return tuple(t.activation.node for t in self.product.terms if t.activation is not None)


def layers(task: Task) -> tuple[tuple[GraphLayer, ...], tuple[Omission, ...]]:
    """Layers that multiply activations, in the order in which they run, and what of the network is not understood."""
    batch = probe(task, PROBED)
    try:
        graph = traced(task)
        assert graph.trace.outputs is not None
        (made,) = graph.trace.evaluate([graph.trace.outputs], task, batch)
    except FOREIGN as error:
        return (), (Omission("model", f"its gradient could not be followed ({said(error)})"),)
    with torch.no_grad():
        answers, _ = task.logits(task.parameters, task.buffers, batch.inputs)
    if not torch.allclose(made, answers, rtol=1e-3, atol=1e-3 * float(answers.abs().max()), equal_nan=True):
        return (), (Omission("model", "computes other things for other examples, so that its layers are not known"),)
    places = {node: k for k, node in enumerate(graph.trace.code.graph.nodes)}
    found = [
        GraphLayer(graph, p) for p in graph.products if p.activation is not None and not any(map(_looks_up, p.terms))
    ]
    found.sort(key=lambda layer: places[layer.reads[0]])
    names = dict.fromkeys(name for name, _ in graph.unexplained)
    return tuple(found), tuple(Omission(name, "is used in a way that is not understood") for name in names)


def _looks_up(term: Term) -> bool:
    return term.activation is not None and bool(term.activation.hot)


def drives(task: Task, batch: Batch) -> Drives:
    """Measures a batch in eval mode, a few examples at a time. The task is not changed."""
    like = next(iter(task.parameters.values()))
    quiet = in_eval(task)
    found, remarks = layers(quiet)
    if task.mode is Mode.TRAIN:
        remarks = (Omission("model", "measured in eval mode, with the statistics that were received"), *remarks)
    pieces = (torch.split(t, at_once(task)) for t in (batch.inputs.to(like), batch.labels))
    parts = [_some(quiet, found, Batch(x, y)) for x, y in zip(*pieces, strict=True)]
    joined = tuple(
        replace(same[0], rows=torch.cat([one.rows for one in same]), inputs=torch.cat([one.inputs for one in same]))
        for same in zip(*(part.layers for part in parts), strict=True)
    )
    residuals, finite = torch.cat([p.residuals for p in parts]), torch.cat([p.finite for p in parts])
    return Drives(joined, residuals, finite, remarks)


def _some(task: Task, found: tuple[GraphLayer, ...], batch: Batch) -> Drives:
    """Drives of examples that fit into memory together."""
    n = len(batch)
    with torch.enable_grad():
        logits, _ = task.logits(task.parameters, task.buffers, batch.inputs)
        answer = logits.detach().clone().requires_grad_()
        loss = task.loss_of(answer, batch.labels)
        residual = torch.autograd.grad(loss, answer)[0] * n
    length = residual.flatten(1).norm(dim=1)
    scale = n / length.clamp_min(torch.finfo(length.dtype).tiny)
    operands = [o for layer in found for t in layer.product.terms for o in (t.signal, t.activation) if o is not None]
    nodes = list(dict.fromkeys(o.node for o in operands))
    with torch.no_grad():
        values = dict(zip(nodes, found[0].graph.trace.evaluate(nodes, task, batch), strict=True)) if found else {}
    made = []
    start = next((layer.reads for layer in found if layer.linear), ())
    finite = answer.detach().isfinite().flatten(1).all(1) & length.isfinite()
    for layer in found:
        squares = [_squares(layer.graph, t, values[t.signal.node], scale) for t in layer.product.terms]
        rows = torch.stack(squares).sum(0)
        inputs = torch.stack([values[node].reshape(n, -1).square().sum(1) for node in layer.reads]).sum(0)
        finite &= rows.isfinite().all(1) & inputs.isfinite()
        rows, inputs = (t.sqrt().nan_to_num(0.0, 0.0, 0.0) for t in (rows, inputs))
        unit = (residual.abs() * (scale / n)[:, None]).nan_to_num(0.0, 0.0, 0.0)
        head = rows.shape == unit.shape and bool(torch.allclose(rows, unit, rtol=1e-3, atol=1e-6))
        made.append(LayerDrive(layer.name, layer.linear, layer.reads == start, head, rows, inputs))
    return Drives(tuple(made), length.nan_to_num(), finite, ())


def _squares(graph: Graph, term: Term, signal: Tensor, scale: Float[Tensor, " n"]) -> Float[Tensor, "n rows"]:
    """Squared length over all positions of the error signal at each output unit, example by example."""
    traced_with, n = graph.trace.examples, len(scale)
    own, kinds = [a for axis in cut(term.signal.dims) for a in axis], dict(term.kinds)
    places = sorted((a for a in own if a not in kinds), key=lambda a: a.length % traced_with != 0)  # examples first
    units = [a for a in own if a in kinds]
    value = term.signal.matrix(
        signal, (*places, *units), lambda length: length if length % traced_with else length // traced_with * n
    )
    squares: Tensor = (value.reshape(n, -1, math.prod(a.length for a in units)) * scale[:, None, None]).square().sum(1)
    return squares
