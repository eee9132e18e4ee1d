"""The same attack twice: by one who knows the defence, and by one who has not heard of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from leakgauge.compute import Budget, Compute
from leakgauge.observation import Attack, Observation, OnStep, Reconstruction
from leakgauge.registry import ATTACKS


@ATTACKS.register("naive", needs="what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Naive:
    """`attack` by one who takes the update for an undefended one: the reading that flatters a defence.

    Architecture changes (PRECODE) are in the model that the server broadcasts, so even this attacker has them.
    """

    attack: Attack

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """As the attack does, without `Knowledge.defense`."""
        forgetful = replace(observation, knowledge=replace(observation.knowledge, defense=None, draws=None))
        return self.attack.reconstruct(forgetful, generator, budget=budget, compute=compute, on_step=on_step)


@ATTACKS.register("adapted", needs="defense, and what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Adapted:
    """`attack` by one who knows the defence: not applicable to one who does not.

    An attack that is given the defence uses it by itself (see `Matching.counters`), so where `knows` holds the defence
    this is `attack`; the name says so in a comparison with `Naive`.
    """

    attack: Attack

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """As the attack does."""
        if observation.knowledge.defense is None:
            return Reconstruction.not_applicable("needs the client's defence (knows: defense)")
        return self.attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
