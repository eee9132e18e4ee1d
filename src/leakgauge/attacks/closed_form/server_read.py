"""The attack that a dishonest server prepared."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.compute import Budget, Compute
from leakgauge.observation import Observation, OnStep, Reconstruction
from leakgauge.registry import ATTACKS


@ATTACKS.register("server-read", needs="a dishonest server")
@dataclass(frozen=True)
class ServerRead:
    """Reads the update as the server that crafted the model does, whichever server it is (`leakgauge.servers`).

    The recipe and its source are the server's; see `leakgauge list servers`.
    """

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Not applicable where the server is honest."""
        crafting = observation.knowledge.crafting
        if crafting is None:
            return Reconstruction.not_applicable("the server is honest: nothing was prepared for reading (server: …)")
        return crafting.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
