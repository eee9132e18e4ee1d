"""Top-k sparsification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.defenses.kept import kept_entries
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


@DEFENSES.register("topk")
@dataclass(frozen=True, kw_only=True)
class TopK(Defense):
    """Keeps the largest k = ⌈keep·n⌉ entries by magnitude of each tensor and sends zeros for the rest.

    Guarantee: exactly k entries are kept (ties by position), at their values; fewer are non-zero only
    when the tensor has fewer. No privacy guarantee: the kept entries are exact and their places tell
    the attacker where the gradient is large.

    Differs from the ROG release, which keeps k−1 (strict inequality): a bias of ten keeps none there.
    """

    keep: float

    def __post_init__(self) -> None:
        require(0 < self.keep <= 1, "keep", f"is {self.keep}", "give a share in (0, 1], e.g. 0.05")

    def _mask(self, t: Tensor) -> Tensor:
        k = kept_entries(self.keep, t.numel())
        flat = t.detach().abs().flatten()
        kept = flat.argsort(descending=True, stable=True)[:k]
        return torch.zeros_like(flat).scatter(0, kept, 1.0).view_as(t)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: torch.where(self._mask(t) > 0, t, torch.zeros_like(t)), tensors)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """The support is on the wire, unless a later stage (noise) has filled the zeros: then the
        attacker sparsifies its own simulation."""
        del draw
        sent = map_tensors(lambda t: t != 0, update.tensors)
        filled = any(int(m.sum()) > kept_entries(self.keep, m.numel()) for m in sent.values())
        if filled:
            return AttackerView(simulate=lambda raw: self.on_update(raw, None))
        return AttackerView(support=sent, unsent_small=True)
