"""Which attacker knows which defence: every defence has a named counter, or says that none is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from leakgauge.attacks.matching import Matching
from leakgauge.clients import FedSGD, cohort_view
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Defense, Prune, RandomK, Soteria, TopK, parts_of
from leakgauge.observation import Attack, Observation, OnStep, Reconstruction
from leakgauge.registry import ATTACKS

Adapt = Callable[[Matching, Any, Observation], Matching]
"""``(attack, defence, observation) → attack``: the same canvas, minimiser, start and number of evaluations, with other
parts where knowing the mechanism helps. It reads nothing but its arguments, and never the client's draws."""


Missing = Callable[[Any, Observation], str]
"""``(defence, observation) → what this attacker lacks for the counter``; empty where it acts."""


def _nothing(defense: Defense, observation: Observation) -> str:
    del defense, observation
    return ""


@dataclass(frozen=True)
class Counter:
    """How an attack changes for one who knows a defence.

    Attributes:
        name: of the counter, as reports call it, e.g. ``support-mask``.
        adapt: the change. The identity where the defence's `attacker_view`, which every simulation goes through,
            is all there is to know.
        because: one sentence: what the attacker makes use of.
        missing: why it leaves the attack as it is in some settings, as in "the labels".
    """

    name: str
    adapt: Adapt
    because: str
    missing: Missing = _nothing


@dataclass(frozen=True)
class NoneKnown:
    """No counter is known, with the reason. An audit says so; it does not call the defence safe.

    Attributes:
        broken_by: who breaks the defence with more than an attack here is given, as the start of a sentence; empty
            where nobody has published that. A row that rests on it is flagged.
    """

    reason: str
    broken_by: str = ""


COUNTERS: dict[type[Defense], Counter | NoneKnown] = {}
"""By type of defence. A defence of your own gets one by ``counters(YourDefense)``."""


def counters(*kinds: type[Defense], name: str, because: str, missing: Missing = _nothing) -> Callable[[Adapt], Adapt]:
    """Decorator: registers a function as the counter to some kinds of defences."""

    def add(adapt: Adapt) -> Adapt:
        for kind in kinds:
            COUNTERS[kind] = Counter(name, adapt, because, missing)
        return adapt

    return add


def counter_to(defense: Defense) -> Counter | NoneKnown:
    """The counter to one defence that is no composition."""
    return counter_to_kind(type(defense))


def counter_to_kind(kind: type[Defense]) -> Counter | NoneKnown:
    """The counter to a type of defence, or to the nearest of its bases that has one."""
    found = next((COUNTERS[base] for base in kind.__mro__ if base in COUNTERS), None)
    return found or NoneKnown("nobody has registered one")


def built_in(attack: Matching, observation: Observation) -> tuple[Matching, str]:
    """The attack with the counter to each defence that its attacker knows, in their order, and what it has none to.

    The canvas, minimiser, start and budget stay, so that the difference to `Naive` is what knowing the mechanism is
    worth. Defences without a counter are attacked through their `attacker_view` alone.
    """
    defense, said = observation.knowledge.defense, []
    for part in () if defense is None else parts_of(defense):
        counter = counter_to(part)
        if isinstance(counter, Counter):
            attack = counter.adapt(attack, part, observation)
        else:
            said.append(f"no counter to {type(part).__name__} is known ({counter.reason}), so this may flatter it")
    return replace(attack, counters=False), "; ".join(said)


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


def _for_the_zeros(defense: Defense, observation: Observation) -> str:
    known = observation.knowledge
    view = cohort_view(known.local_training or FedSGD(), known.defense or defense, observation.update, known.draws)
    return "" if view.support is not None else "zeros on the wire, which averaging or a later stage has filled"


@counters(
    TopK,
    RandomK,
    Prune,
    Soteria,
    name="support-mask",
    because="which entries were left out is plain to see, and what was sent is exact: only that is compared",
    missing=_for_the_zeros,
)
def against_omission(attack: Matching, defense: TopK | RandomK | Prune | Soteria, observation: Observation) -> Matching:
    """The attack as it is: the support is part of every simulation by one who knows the defence.

    Where secure aggregation or a later stage has filled the zeros, every simulation still leaves entries out, by its
    own sizes, and the support is not known.

    That entries left out by top-k are no larger than the smallest that was sent adds nothing: as a hinge beside the
    squared distance, 17.9 dB against 17.8 without it and 10.2 of the naive attack (keep 1 %, untrained LeNet, two
    CIFAR-10 pictures, one seed, 300 evaluations of bounded L-BFGS).
    """
    del defense, observation
    return attack
