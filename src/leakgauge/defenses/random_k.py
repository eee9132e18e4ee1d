"""Random-k sparsification."""

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


@DEFENSES.register("random-k")
@dataclass(frozen=True, kw_only=True)
class RandomK(Defense):
    """Keeps k = ⌈keep·n⌉ entries of each tensor, drawn without replacement, and sends zeros for the rest.

    Guarantee: exactly k entries are kept; where `unbiased` they are multiplied by n/k, and E[sent] = g. No privacy
    guarantee: the kept entries are exact. A not-a-number is sent if it is drawn.

    Attributes:
        keep: share of entries, above 0 and at most 1.
        unbiased: whether the kept entries are multiplied by n/k.
        shared_seed: whether server and client draw the places alike, so that only values are sent. It changes the
            bytes on the wire (`wire_bytes`), nothing else: the places are plain to see either way.
    """

    keep: float
    unbiased: bool = False
    shared_seed: bool = False

    def __post_init__(self) -> None:
        require(0 < self.keep <= 1, "keep", f"is {self.keep}", "give a share in (0, 1], e.g. 0.05")

    def kept(self, n: int) -> int:
        """k of a tensor with n entries."""
        return kept_entries(self.keep, n)

    def factor(self, t: Tensor) -> float:
        """By which the kept entries of a tensor are multiplied."""
        return t.numel() / self.kept(t.numel()) if self.unbiased and t.numel() else 1.0

    def masks(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        """Entries that are sent, name → bool."""

        def one(t: Tensor) -> Tensor:
            places = torch.randperm(t.numel(), generator=generator)[: self.kept(t.numel())]
            return torch.zeros(t.numel(), dtype=torch.bool).index_fill(0, places, True).view(t.shape).to(t.device)

        return map_tensors(one, tensors)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return self._sent(tensors, self.masks(tensors, generator))

    def _sent(self, tensors: Tensors, masks: Tensors) -> Tensors:
        return map_tensors(lambda t, m: torch.where(m, t * self.factor(t), torch.zeros_like(t)), tensors, masks)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """The support is on the wire, unless a later stage (noise) has filled the zeros.

        Then it is known with the draw alone. A kept entry that is exactly zero passes for one that was not.
        """

        def scaled(raw: Tensors) -> Tensors:
            return map_tensors(lambda t: t * self.factor(t), raw)

        if draw is not None:
            masks = self.masks(update.tensors, draw)
            return AttackerView(simulate=lambda raw: self._sent(raw, masks))
        sent = map_tensors(lambda t: t != 0, update.tensors)
        if any(int(m.sum()) > self.kept(m.numel()) for m in sent.values()):
            return AttackerView()  # over the places, which nobody knows, an unbiased entry is the raw one in the mean
        return AttackerView(simulate=scaled if self.unbiased else None, support=sent)
