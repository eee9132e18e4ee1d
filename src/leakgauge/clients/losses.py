"""Losses that clients train with, beside plain cross-entropy. Labels are classes, or shares that sum to one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.registry import TRAINING_LOSSES
from leakgauge.task import Loss, cross_entropy


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """``torch.nn.CrossEntropyLoss``, mean over the batch.

    Attributes:
        label_smoothing: share of a label that is spread over all classes, 0 to 1.
        weights: of the classes; empty for equal ones.
    """

    label_smoothing: float = 0.0
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        smoothing = self.label_smoothing
        require(0 <= smoothing <= 1, "label_smoothing", f"is {smoothing}", "give a number from 0 to 1")
        require(all(w >= 0 for w in self.weights), "weights", "has one below zero", "give one a class, each ≥ 0")

    def __call__(self, logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
        fits = len(self.weights) in (0, logits.shape[-1])
        problem = f"has {len(self.weights)} values for {logits.shape[-1]} outputs"
        require(fits, "loss.weights", problem, "give one an output of the model")
        weights = torch.tensor(self.weights, dtype=logits.dtype, device=logits.device) if self.weights else None
        return F.cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing)


@TRAINING_LOSSES.register("cross-entropy")
def made_cross_entropy(*, label_smoothing: float = 0.0, weights: tuple[float, ...] = ()) -> Loss:
    """Soft-max cross-entropy, with label smoothing and weights of the classes."""
    plain = not label_smoothing and not weights
    return cross_entropy if plain else CrossEntropy(label_smoothing=label_smoothing, weights=weights)


@TRAINING_LOSSES.register("bce-with-logits")
@dataclass(frozen=True, kw_only=True)
class BCEWithLogits:
    """``torch.nn.BCEWithLogitsLoss`` of each class on its own, as for several labels; mean over batch and outputs.

    Attributes:
        positive: weights of each output's positive examples (``pos_weight``); empty for 1.
    """

    positive: tuple[float, ...] = ()

    def __call__(self, logits: Float[Tensor, "n classes"], labels: Tensor) -> Float[Tensor, ""]:
        classes = torch.arange(logits.shape[-1], device=labels.device)  # as one_hot, which does not run under vmap
        shares = labels if labels.is_floating_point() else (labels[..., None] == classes).to(logits)
        weights = torch.tensor(self.positive, dtype=logits.dtype, device=logits.device) if self.positive else None
        return F.binary_cross_entropy_with_logits(logits, shares, pos_weight=weights)
