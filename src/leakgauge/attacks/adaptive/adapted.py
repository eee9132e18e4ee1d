"""The same attack twice: by one who knows the defence, and by one who has not heard of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch

from leakgauge.attacks.adaptive.counter import Counter, counter_to
from leakgauge.attacks.matching import Matching
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Defense, MixUp, parts_of
from leakgauge.observation import Observation
from leakgauge.reconstruction import Attack, OnStep, Reconstruction
from leakgauge.registry import ATTACKS


@runtime_checkable
class Chooses(Protocol):
    """An attack that decides on its parts when it sees the observation, or has the answer then (`auto`)."""

    def assembly(
        self, observation: Observation, generator: torch.Generator, budget: Budget, *, read: bool = True
    ) -> Matching | Reconstruction: ...


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
        budget: Budget = Budget(),  # noqa: B008 - frozen
        compute: Compute = Compute(),  # noqa: B008 - frozen
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """As the attack does, without `Knowledge.defense`."""
        forgetful = replace(observation, knowledge=replace(observation.knowledge, defense=None, draws=None))
        return self.attack.reconstruct(forgetful, generator, budget=budget, compute=compute, on_step=on_step)


@ATTACKS.register("adapted", needs="defense, and what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Adapted:
    """`attack` with each known counter to the client's defences built in, in the order of the defences.

    The canvas, minimiser, start and budget stay those of `attack`, so that the difference to `Naive` is what
    knowing the mechanism is worth. Defences without a counter are attacked through their `attacker_view` alone. Where
    the client mixes its examples, a closed form would read mixtures, and is left out.

    Whether the update's length counts, the counters leave as `attack` has it. Measured with `auto` (docs, defences) and
    with `rog` (``leakgauge reproduce rog/adapted``): in the mean over clients it is worse nowhere.
    """

    attack: Attack

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        compute: Compute = Compute(),  # noqa: B008 - frozen
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """As the attack does, with other parts; not applicable where the defence is unknown."""
        defense = observation.knowledge.defense
        if defense is None:
            return Reconstruction.not_applicable("needs the client's defence (knows: defense)")
        attack = self.attack
        parts = parts_of(defense)
        if isinstance(attack, Chooses) and parts:
            chosen = attack.assembly(observation, generator, budget, read=not any(isinstance(p, MixUp) for p in parts))
            if isinstance(chosen, Reconstruction):
                return _with_unknown(chosen, parts)
            attack = chosen
        if isinstance(attack, Matching):
            for part in parts:
                counter = counter_to(part)
                if isinstance(counter, Counter):
                    attack = counter.adapt(attack, part, observation)
        found = attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
        return _with_unknown(found, parts)


def _with_unknown(found: Reconstruction, parts: tuple[Defense, ...]) -> Reconstruction:
    """The same, naming the defences that this attacker has no answer to."""
    said = [found.message] if found.message else []
    for part in parts:
        counter = counter_to(part)
        if not isinstance(counter, Counter):
            said.append(f"no counter to {type(part).__name__} is known ({counter.reason}), so this may flatter it")
    return replace(found, message="; ".join(said))
