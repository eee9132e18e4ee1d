"""Pruning by magnitude, over the whole update."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.defenses.kept import kept_entries
from leakgauge.errors import require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, entries, map_tensors
from leakgauge.update import Update


@DEFENSES.register("prune")
@dataclass(frozen=True, kw_only=True)
class Prune(Defense):
    """Sends zeros for the ⌊rate·N⌋ smallest of all N entries by magnitude: one threshold for all tensors.

    The gradient pruning of Zhu et al., *Deep Leakage from Gradients*, NeurIPS 2019, §5.2. `topk` keeps a share of each
    tensor; here whole tensors may vanish. Ties: earlier entries are kept, in the order of the tensors. A
    not-a-number counts as larger than any number, and is sent.

    Guarantee: exactly N − ⌊rate·N⌋ entries are kept, at their values. No privacy guarantee.
    """

    rate: float

    def __post_init__(self) -> None:
        require(0 < self.rate < 1, "rate", f"is {self.rate}", "give a share between 0 and 1, e.g. 0.9")

    def kept(self, total: int) -> int:
        """Entries sent of `total`."""
        return kept_entries(1 - self.rate, total)

    def masks(self, tensors: Tensors) -> Tensors:
        """Entries that are sent, name → bool."""
        flat = torch.cat([t.detach().abs().flatten() for t in tensors.values()])
        places = flat.argsort(descending=True, stable=True)[: self.kept(flat.numel())]
        # Not in place: usable under vmap.
        chosen = torch.zeros_like(flat).scatter(0, places, 1.0) > 0
        pieces = chosen.split([t.numel() for t in tensors.values()])
        return {name: piece.view(t.shape) for (name, t), piece in zip(tensors.items(), pieces, strict=True)}

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t, m: torch.where(m, t, torch.zeros_like(t)), tensors, self.masks(tensors))

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        """The support is on the wire, unless a later stage (noise) has filled the zeros: then the attacker
        prunes its own simulation."""
        del draw
        sent = map_tensors(lambda t: t != 0, update.tensors)
        if sum(int(m.sum()) for m in sent.values()) > self.kept(entries(update.tensors)):
            return AttackerView(simulate=lambda raw: self.on_update(raw, None))
        return AttackerView(support=sent, unsent_small=True)
