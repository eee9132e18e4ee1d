"""Differential privacy of a whole client: its update is clipped, and noise added."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.defenses.clip import Clip
from leakgauge.defenses.defense import AttackerView, Defense
from leakgauge.defenses.gaussian import normal_like, require_bound, require_multiplier
from leakgauge.defenses.likelihood import gaussian_view, replaying_view
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


@DEFENSES.register("client-dp")
@dataclass(frozen=True, kw_only=True)
class ClientDP(Defense):
    """u·min(1, C/‖u‖) + N(0, (zC)²I) for the update u, a gradient or a delta; ‖·‖ over all tensors together.

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, with the noise
    added by the client (local model): the server that sees one update faces z. A server that sees only the mean of
    m such updates faces noise zC/√m where a client moves the mean by at most C/m: z·√m. Where the server itself
    adds the noise, it has seen the updates without, and this defence is not what protects from it.

    Attributes:
        noise_multiplier: z, in units of `norm`; positive. Without noise it is `clip`.
        norm: C, the bound of the update; noise without it would bound nothing.
    """

    noise_multiplier: float
    norm: float

    def __post_init__(self) -> None:
        require_bound(self.norm)
        require_multiplier(self.noise_multiplier, otherwise="clip")

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        sigma = self.noise_multiplier * self.norm
        return map_tensors(lambda t: t + sigma * normal_like(t, generator), self._clipped(tensors))

    def _clipped(self, tensors: Tensors) -> Tensors:
        return Clip(norm=self.norm).on_update(tensors, None)

    def attacker_view(self, update: Update, draw: torch.Generator | None) -> AttackerView:
        if draw is not None:
            return replaying_view(self.on_update, draw)
        sigma = self.noise_multiplier * self.norm
        return gaussian_view(update, map_tensors(lambda t: t.new_tensor(sigma), update.tensors), self._clipped)
