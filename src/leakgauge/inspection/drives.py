"""How strongly each example drives each row of each layer, by its own gradient, and the layers in the graph of it."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.errors import FOREIGN, said
from leakgauge.inspection.matrices import Omission
from leakgauge.task import Batch, Mode, Task
from leakgauge.view.graph import Graph, OuterSum, traced
from leakgauge.view.trace import probe

VALUES_AT_ONCE = 2**20  # input values per pass; bounds memory (VGG16 at 224 px: six examples at a time)
ALONE = 0.99  # share of a row's total drive from which it belongs to one example
PROBED = 3  # random examples on which the graph must answer as the model does
FITTED = 1e-7
"""Relative residual below which an example counts as fitted perfectly: float32 rounds its probability to one."""


@dataclass(frozen=True, eq=False)
class LayerDrive:
    """How strongly each example drives one layer: its own weight gradient, with the loss gradient at the model's answer
    scaled to length one, so that an example that the model fits well counts like any other."""

    name: str
    first: bool  # it reads what the first linear layer reads
    rows: Float[Tensor, "n rows"]  # length of the gradient of each output unit's or channel's weights


@dataclass(frozen=True, eq=False)
class Drives:
    """Layers of one model below the one that answers, on one batch, in the order in which they run."""

    hidden: tuple[LayerDrive, ...]
    # examples of finite answer, loss and gradients that the loss moves at all: with at least `FITTED` of the largest
    # residual
    erring: Bool[Tensor, " n"]
    remarks: tuple[Omission, ...]  # what the measurement could not cover, each with the reason


def driven(rows: Float[Tensor, "n rows"]) -> Bool[Tensor, "n rows"]:
    """Which example drives which row: by more than (1 − ALONE) of the row's total, in rows that are driven at all."""
    total = rows.sum(0)
    live = total > 1e-6 * total.max()
    return (rows > (1 - ALONE) * total) & live


@lru_cache(maxsize=1)
def in_eval(task: Task) -> Task:
    """The same task in eval mode: the same one for all rules, so that its network is traced once."""
    return task if task.mode is Mode.EVAL else task.in_eval()


def at_once(task: Task) -> int:
    """Examples per pass."""
    return max(1, VALUES_AT_ONCE // max(1, math.prod(task.data.shape)))


def name_of(layer: OuterSum) -> str:
    """That of its first parameter, as far as it names a layer."""
    parameter = layer.weight or layer.parameters[0]
    return parameter.rpartition(".")[0] or parameter


def layers(task: Task) -> tuple[tuple[OuterSum, ...], Graph | None, tuple[Omission, ...]]:
    """Layers that multiply activations, in the order in which they run, the graph that they are in, and what of the
    network is not understood."""
    batch = probe(task, PROBED)
    try:
        graph = traced(task)
        assert graph.trace.outputs is not None
        (made,) = graph.trace.evaluate([graph.trace.outputs], task, batch)
    except FOREIGN as error:
        return (), None, (Omission("model", f"its gradient could not be followed ({said(error)})"),)
    with torch.no_grad():
        answers, _ = task.logits(task.parameters, task.buffers, batch.inputs)
    if not torch.allclose(made, answers, rtol=1e-3, atol=1e-3 * float(answers.abs().max()), equal_nan=True):
        why = "computes other things for other examples, so that its layers are not known"
        return (), None, (Omission("model", why),)
    places = {node: k for k, node in enumerate(graph.trace.code.graph.nodes)}
    looks_up = {p for p in graph.products if any(t.activation is not None and t.activation.hot for t in p.terms)}
    found = [p for p in graph.products if p.activation is not None and p not in looks_up]
    found.sort(key=lambda layer: places[layer.reads[0]])
    odd = tuple(Omission(name, "is used in a way that is not understood") for name in graph.unexplained)
    return tuple(found), graph, odd


def drives(task: Task, batch: Batch) -> Drives:
    """Measures a batch in eval mode, one example at a time. The task is not changed."""
    like, quiet = next(iter(task.parameters.values())), in_eval(task)
    found, graph, remarks = layers(quiet)
    if task.mode is Mode.TRAIN:
        remarks = (Omission("model", "measured in eval mode, with the statistics that were received"), *remarks)
    each = [_own(quiet, found, graph, batch.take(index.view(1)), like) for index in torch.arange(len(batch))]
    residuals = torch.stack([residual for residual, _ in each])
    lengths = residuals.norm(dim=1)
    scale, finite = lengths.clamp_min(torch.finfo(lengths.dtype).tiny)[:, None], lengths.isfinite()
    unit = (residuals.abs() / scale).nan_to_num(0.0, 0.0, 0.0)
    start, made = next((layer.reads for layer in found if not layer.slides), ()), []
    for layer, parts in zip(found, zip(*(rows for _, rows in each), strict=True), strict=True):
        rows = torch.stack(parts)
        finite &= rows.isfinite().all(1)
        rows = (rows / scale).nan_to_num(0.0, 0.0, 0.0)
        turned = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        if rows.shape != unit.shape or not torch.allclose(turned, unit, rtol=1e-3, atol=1e-6):  # not the answer's
            made.append(LayerDrive(name_of(layer), layer.reads == start, rows))
    lengths = lengths.nan_to_num()
    return Drives(tuple(made), finite & (lengths > FITTED * lengths.max()), remarks)


def _own(
    task: Task, found: tuple[OuterSum, ...], graph: Graph | None, one: Batch, like: Tensor
) -> tuple[Float[Tensor, " outputs"], list[Float[Tensor, " rows"]]]:
    """The loss gradient at one example's answer, and the lengths of its gradient of each layer's rows."""
    one = Batch(one.inputs.to(like), one.labels)
    with torch.enable_grad():
        answer = task.logits(task.parameters, task.buffers, one.inputs)[0].detach().clone().requires_grad_()
        residual = torch.autograd.grad(task.loss_of(answer, one.labels), answer)[0].flatten()
    with torch.no_grad():
        free = None if graph is None else replace(graph.trace, fixed=False)  # one that counts its examples too
        values = () if free is None else free.evaluate([layer.node for layer in found], task, one)
    return residual, [layer.matrices(v).norm(dim=2).flatten() for layer, v in zip(found, values, strict=True)]
