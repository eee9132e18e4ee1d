"""Per-class features from a classifier that answers one decoy class for everything."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.observation import Observation
from leakgauge.servers.provenance import gradient_factor
from leakgauge.task import DataSpec, Task
from leakgauge.update import UpdateKind

DECOY_BIAS = 50.0
"""Lead of the decoy's logit. e⁻⁴⁰ would be below the rounding of float64; the rest is room for local steps."""


def decoy_of(task: Task) -> int:
    """An output that no label has, where the model has one; else class 0, whose examples are then not read."""
    return task.data.classes if task.outputs > task.data.classes else 0


@dataclass(frozen=True, eq=False)
class ClassFeatures:
    """Mean feature per class that was seen.

    Attributes:
        features: one row a class, at `classes`.
        counts: examples of each; `None` where the update's scale is unknown.
    """

    classes: Int[Tensor, " k"]
    features: Float[Tensor, "k f"]
    counts: Int[Tensor, " k"] | None


def class_features(
    observation: Observation, weight: str, bias: str, columns: slice, decoy: int
) -> ClassFeatures | None:
    """W_c ÷ b_c for every class but the decoy; `None` where no class was seen.

    The decoy's logit leads by `DECOY_BIAS`, so that softmax gives p ≈ 0 elsewhere and ∂L/∂logit_c is −1/n on the
    examples of class c and 0 on all others: the ratio is the mean feature of the class, and −n·∂L/∂b_c its count.
    """
    tensors, factor = observation.update.tensors, gradient_factor(observation)
    sign = 1.0 if observation.update.header.kind is UpdateKind.GRADIENT else -1.0
    rows, totals = tensors[weight][:, columns], tensors[bias] * sign
    seen = totals < -1e-6 * totals.abs().max()
    seen[decoy] = False
    seen[observation.task.data.classes :] = False
    classes = seen.nonzero()[:, 0]
    if not len(classes):
        return None
    counts: Tensor | None = None
    if factor is not None and observation.examples is not None:
        exact = -observation.examples * tensors[bias][classes] * factor
        whole = exact.round()
        # A defence that changed the numbers shows here.
        if bool(((exact - whole).abs() < 1e-4 * whole.clamp_min(1)).all()) and bool((whole > 0).all()):
            counts = whole.long()
    features = rows[classes] * sign / totals[classes][:, None]
    return ClassFeatures(classes, features, counts)


def inside(raw: Float[Tensor, "k *shape"], data: DataSpec) -> bool:
    """Whether all examples lie in the data's range, up to a hundredth of its width."""
    margin = 1e-2 * data.range
    return bool(((raw >= data.low - margin) & (raw <= data.high + margin)).all())


def exactly_all(found: ClassFeatures, examples: int | None) -> bool:
    """Whether every example of the batch is the only one of its class, and none is of the decoy's."""
    if found.counts is None or examples is None:
        return False
    return bool((found.counts == 1).all()) and int(found.counts.sum()) == examples


def summary(found: ClassFeatures, examples: int | None) -> str:
    """What was read, for the report."""
    shown = f"{len(found.classes)} classes read"
    if found.counts is None:
        return f"{shown}; how many examples each of them has is not known"
    alone = int((found.counts == 1).sum())
    missing = "" if examples is None else f", {examples - int(found.counts.sum())} examples of the decoy class unread"
    return f"{shown}, {alone} of them with one example, the others as means{missing}"
