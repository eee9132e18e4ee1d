"""Named parts of examples against what was read of them: truth meets a result here too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.batch import BatchPart, DataSpec
from leakgauge.metrics.metric import Metric
from leakgauge.observation import Reconstruction
from leakgauge.step.targets import Classes, Labels
from leakgauge.study.evaluate import Evaluation, Truth, evaluate
from leakgauge.study.judging.part_scores import PartScores
from leakgauge.study.judging.records import Values
from leakgauge.task import Batch, Task


def evaluate_parts(
    reconstruction: Reconstruction,
    truth: Truth,
    task: Task,
    others: Batch,
    *,
    labels_known: bool,
    perceptual: Metric | None = None,
) -> tuple[Evaluation, tuple[PartScores, ...]]:
    """Examples as a whole, by their inputs, and each part by itself; targets that are no classes do not pair reads.

    Args:
        others: examples of other clients, from which the best guess without the update is made.
    """
    kinds = [type(target) for target in task.layout.targets.values()]
    found, seen = reconstruction, truth
    if kinds != [Classes]:
        found = replace(found, labels=None, paired=False)
        seen = replace(truth, batch=Batch(truth.batch.inputs, torch.zeros(len(truth.batch), dtype=torch.long)))
    whole = evaluate(found, seen, task.data, labels_known=labels_known and kinds == [Classes], perceptual=perceptual)
    named = reconstruction.in_parts(task).parts if reconstruction.status.has_result else {}
    true, usual = task.layout.raw(truth.batch), task.layout.raw(others)
    return whole, tuple(
        _scores(name, part, true[name], usual[name], named.get(name), whole.order)
        for name, part in task.layout.parts.items()
    )


def _scores(
    name: str, part: BatchPart, true: Tensor, usual: Tensor, read: Tensor | None, order: Sequence[int | None]
) -> PartScores:
    agrees = part.whole or isinstance(part, Labels)
    guess = usual.reshape(len(usual), -1).double()
    if agrees:  # how often others agree with it
        flat = true.reshape(len(true), -1).double()
        bars = torch.stack([(guess == own).double().mean() for own in flat])
    else:
        bars = _distances(guess.mean(0).expand(len(true), -1), true, part, agrees=False)
    values: Values = (None,) * len(true)
    if read is not None and len(read) and read[0].shape == true[0].shape:
        slots = [-1 if slot is None else slot for slot in order]
        kept = torch.tensor([max(slot, 0) for slot in slots])
        off = _distances(read.detach().cpu()[kept].reshape(len(true), -1), true, part, agrees=agrees).tolist()
        values = tuple(None if slot < 0 else float(f"{v:.6g}") for slot, v in zip(slots, off, strict=True))
    measure = "equal" if agrees else "error"
    return PartScores(name, _kind(part), measure, values, tuple(float(f"{v:.6g}") for v in bars.tolist()))


def _distances(read: Tensor, true: Tensor, part: BatchPart, *, agrees: bool) -> Float[Tensor, " n"]:
    """Share of entries that are equal, or the mean absolute error in shares of the range, of each example."""
    read, true = read.double(), true.reshape(len(true), -1).double()
    if agrees:
        return (read.round() == true).double().mean(1)
    low, high = (torch.tensor(edge, dtype=torch.float64) for edge in part.edges)
    return ((read - true).abs() / (high - low)).mean(1)


def _kind(part: BatchPart) -> str:
    if not isinstance(part, DataSpec):
        return type(part).__name__.lower()
    return "text" if part.is_text else {2: "series", 3: "picture", 4: "volume"}.get(len(part.shape), "numbers")
