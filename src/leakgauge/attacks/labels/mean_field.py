"""Label counts if every example had the mean feature: a first guess, and the answer where there are many outputs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels.classifier import Classifier
from leakgauge.attacks.labels.head import SimulatedHead, head_task
from leakgauge.attacks.labels.posterior import largest_remainder
from leakgauge.clients.protocol import Protocol
from leakgauge.observation import Observation


def labels_of(counts: Float[Tensor, " c"]) -> Int[Tensor, " n"]:
    """The sorted multiset that has these counts."""
    return torch.repeat_interleave(torch.arange(len(counts)), counts.long())


def mean_field(
    observation: Observation, layer: Classifier, protocol: Protocol, features: Float[Tensor, "m f"], count: int
) -> tuple[Float[Tensor, " c"], float]:
    """Counts if every example had the mean feature: a few fixed-point steps with a simulation each. Any size."""
    classes = observation.task.data.classes
    weight, bias = layer.of(observation.task.parameters)
    moved, moved_bias = layer.of(observation.update.tensors)
    mean = features.mean(0)
    length = mean.norm().clamp_min(1e-12)
    axis = (mean / length)[None]
    outputs = len(weight)

    def summary(w: Tensor, b: Tensor | None) -> Tensor:
        return w[:, 0] if b is None else b

    task = head_task(weight @ axis.T, bias, weight.new_zeros(outputs, 1))
    head = SimulatedHead(task, protocol, axis, length.view(1, 1), summary)
    observed = summary(moved @ axis.T, moved_bias)
    index = torch.zeros(1, count, dtype=torch.long)
    ends = [head(index, torch.full((1, count), c))[0] for c in (0, min(1, classes - 1))]
    unit = (ends[0] - ends[1])[0] / count
    if classes < 2 or not bool(unit.abs() > 0):
        return largest_remainder(weight.new_ones(classes), count), 0.0
    counts, shares = largest_remainder(weight.new_ones(classes), count), weight.new_ones(classes)
    for _ in range(6):
        simulated = head(index, labels_of(counts)[None])[0]
        shares = counts + ((observed - simulated) / unit)[:classes]
        counts = largest_remainder(shares, count)
    off = (torch.nan_to_num(shares, posinf=0.0, neginf=0.0) - counts).abs().sum() / 2
    return counts, float((1 - off / count).clamp(0, 1))
