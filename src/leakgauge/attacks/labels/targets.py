"""Targets of inputs that were read: those that make the error signals that the update holds."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.signals import ErrorSignals
from leakgauge.batch import BatchPart
from leakgauge.errors import FOREIGN
from leakgauge.step.parts import Classes, Labels, Mask, NextToken, Values
from leakgauge.task import Task

STEPS = 30
"""Of Gauss–Newton, from each start."""
FITS = 1e-3
"""Share of the signals' length that targets may leave, to be taken."""
MOST = 256
"""Real numbers that are solved for at once."""
DETERMINED = 1e-6
"""Least share of the most that the slopes move, with which they move with every target: else some are not told."""


def targets_of(signals: ErrorSignals, inputs: Float[Tensor, "n *shape"]) -> Tensor | None:
    """Targets as `Batch.labels` has them, one an example, in the inputs' order; `None` where none fit.

    Real numbers and shares are solved for, classes and what is there or not are then rounded; of masks and next tokens
    every class is tried at every place. Only where there is one target. The length of the signals is not asked for: a
    weight of the classes divides by a sum over the batch.
    """
    targets = list(signals.task.layout.targets.values())
    if len(targets) != 1:
        return None
    try:
        wanted, _ = signals.solve(inputs)
        logits = signals.logits(inputs)
        found = _solved(signals.task, targets[0], logits, wanted)
        return found if found is None or _fit(signals.task, logits, found, wanted) <= FITS else None
    except FOREIGN:  # a loss of somebody's own
        return None


def _slopes(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    with torch.enable_grad():
        at = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(task.loss_of(at, labels), at)
    return slope


def _fit(task: Task, logits: Tensor, labels: Tensor, wanted: Tensor) -> float:
    """Share of the signals that these targets leave, at the best length."""
    made = _slopes(task, logits, labels)
    length = (made * wanted).sum() / made.square().sum().clamp_min(torch.finfo(made.dtype).tiny)
    return float((length * made - wanted).norm() / wanted.norm())


def _solved(task: Task, target: BatchPart, logits: Tensor, wanted: Tensor) -> Tensor | None:
    count = len(logits)
    if isinstance(target, Values | Labels):
        unknowns = count * max(1, int(torch.Size(target.shape).numel()))
        if unknowns > MOST:
            return None
        low, high = target.edges
        starts = (0.5 * (low[0] + high[0]), low[0], high[0])
        ends = [_newton(task, logits, wanted, torch.full((count, *target.shape), s).to(logits)) for s in starts]
        best = min(ends, key=lambda y: _fit(task, logits, y, wanted))
        if isinstance(target, Labels):
            return best.round().clamp(0, 1).to(torch.float32)
        values = torch.linalg.svdvals(_bend(task, logits, best))
        return best if float(values.min()) > DETERMINED * float(values.max()) else None
    if isinstance(target, Classes | Mask | NextToken):
        return _tried(task, target, logits, wanted)
    return None


def _newton(task: Task, logits: Tensor, wanted: Tensor, start: Tensor) -> Tensor:
    """Gauss–Newton for real targets: exact at once where the slope is a line in them, as of squares or BCE."""

    flat = start.flatten()
    for _ in range(STEPS):
        left = (_slopes(task, logits, flat.view_as(start)) - wanted).flatten()
        bend = _bend(task, logits, flat.view_as(start))
        move = torch.linalg.lstsq(bend, -left[:, None], driver="gelsd").solution[:, 0]
        flat = flat + move
        if not bool(flat.isfinite().all()) or float(move.norm()) <= 1e-12 * (1 + float(flat.norm())):
            break
    return flat.nan_to_num().view_as(start)


def _bend(task: Task, logits: Tensor, labels: Tensor) -> Float[Tensor, "signals targets"]:
    """How the slopes move with real targets. A loss that grows in a line far from its target has none there."""

    def slope(flat: Tensor) -> Tensor:
        at = logits.detach().requires_grad_()
        (found,) = torch.autograd.grad(task.loss_of(at, flat.view_as(labels)), at, create_graph=True)
        return found.flatten()

    bend: Tensor = torch.autograd.functional.jacobian(slope, labels.detach().flatten())
    return bend


def _tried(task: Task, target: BatchPart, logits: Tensor, wanted: Tensor) -> Tensor:
    """Each plain class everywhere; place by place the one whose slope points as the signal does."""
    shape = (len(logits), *target.shape)
    gaps = []
    for label in range(target.classes):
        slope = _slopes(task, logits, torch.full(shape, label, dtype=torch.long))
        one, two = (v.flatten(1) if v.ndim == 2 else v for v in (slope, wanted))
        axis = _axis(one, target)
        gaps.append(1 - torch.nn.functional.cosine_similarity(one, two, axis))
    return torch.stack(gaps).argmin(0).view(shape)


def _axis(signal: Tensor, target: BatchPart) -> int:
    """Which axis of the logits tells the classes apart."""
    if signal.ndim == 2 or signal.shape[1:] == (1, *target.shape) or signal.shape[2:] == target.shape:
        return 1
    return signal.ndim - 1
