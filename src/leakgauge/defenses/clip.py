"""Clipping: of the whole update, or of every example's gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update


def clip_factor(squared: Tensor, norm: float) -> Tensor:
    """min(1, norm/‖·‖) from squared norms; 1 for a zero vector, differentiable there too."""
    tiny = torch.finfo(squared.dtype).tiny
    return (norm / squared.clamp_min(tiny).sqrt()).clamp_max(1.0)


def squared_rows(per_example: Tensors) -> Tensor:
    """‖gᵢ‖² of stacked gradients ``(n, *shape)``, over all tensors together."""
    return torch.stack(
        [g.reshape(g.shape[0], math.prod(g.shape[1:])).square().sum(1) for g in per_example.values()]
    ).sum(0)


@DEFENSES.register("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Scales the update down to a Euclidean norm of at most `norm`, over all tensors together.

    Guarantee: norm of the result ≤ `norm` (one rounding error); an update below it is untouched; a zero
    update stays zero, and one that is not finite becomes zero: noise would not hide it. No privacy guarantee: the
    direction is unchanged, and an attack on the direction (cosine) does not notice.
    """

    norm: float

    def __post_init__(self) -> None:
        require(self.norm > 0, "norm", f"is {self.norm}", "give a positive norm")

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        squared = squared_norm(tensors)
        counts, factor = torch.isfinite(squared), clip_factor(squared, self.norm)
        return map_tensors(lambda t: torch.where(counts, t * factor, torch.zeros_like(t)), tensors)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        del update, draw
        return AttackerView(simulate=lambda raw: self.on_update(raw, None))


@DEFENSES.register("clip-examples", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class ClipExamples(Defense):
    """Scales every example's gradient down to norm at most `norm` before they are averaged.

    Guarantee: each example moves the mean gradient by at most norm/n. One whose gradient is not finite counts as
    zero, or it would make the whole update not a number, which no noise hides. This is the clipping of DP-SGD;
    without noise it is not differentially private.
    """

    norm: float

    def __post_init__(self) -> None:
        require(self.norm > 0, "norm", f"is {self.norm}", "give a positive norm")

    @property
    def acts_on_examples(self) -> bool:
        return True

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """Clips each row of the stacked gradients ``(n, *shape)``."""
        del generator
        squared = squared_rows(per_example)
        counts, factor = torch.isfinite(squared), clip_factor(squared, self.norm)

        def clipped(g: Tensor) -> Tensor:
            rows = -1, *([1] * (g.ndim - 1))
            return torch.where(counts.view(rows), g * factor.view(rows), torch.zeros_like(g))

        return map_tensors(clipped, per_example)
