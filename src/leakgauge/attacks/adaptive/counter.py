"""Which attacker knows which defence: every defence has a named counter, or says that none is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.matching import Matching
from leakgauge.clients import FedSGD, cohort_view
from leakgauge.defenses import Clip, ClipExamples, ClipLayers, Defense, Prune, RandomK, Soteria, TopK, parts_of
from leakgauge.observation import Attack, Observation, Reconstruction
from leakgauge.registry import ATTACKS

Adapt = Callable[[Matching, Any, Observation], Matching]
"""``(attack, defence, observation) → attack``: the same canvas, minimiser, start and number of evaluations, with other
parts where knowing the mechanism helps. It reads nothing but its arguments, and never the client's draws."""


Missing = Callable[[Any, Observation], str]
"""``(defence, observation) → what this attacker lacks for the counter``; empty where it acts."""


@dataclass(frozen=True)
class Counter:
    """How an attack changes for one who knows a defence.

    Attributes:
        name: of the counter, as reports call it, e.g. ``support-mask``.
        because: one sentence: what the attacker makes use of.
        change: of the attack; none where the defence's steps, which are in every simulation, are all there is to know.
        missing: why it leaves the attack as it is in some settings, as in "the labels".
    """

    name: str
    because: str
    change: Adapt | None = None
    missing: Missing | None = None

    def adapt(self, attack: Matching, defense: Defense, observation: Observation) -> Matching:
        """The attack with the change."""
        return attack if self.change is None else self.change(attack, defense, observation)

    def lacks(self, defense: Defense, observation: Observation) -> str:
        """What this attacker lacks for it; empty where it acts."""
        return "" if self.missing is None else self.missing(defense, observation)


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


def counters(
    *kinds: type[Defense], name: str, because: str, missing: Missing | None = None
) -> Callable[[Adapt], Adapt]:
    """Decorator: registers a function as the counter to some kinds of defences."""

    def add(adapt: Adapt) -> Adapt:
        COUNTERS.update(dict.fromkeys(kinds, Counter(name, because, adapt, missing)))
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
    worth. Defences without a counter are attacked through their steps alone.
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
class Naive(SearchingAttack):
    """`attack` by one who takes the update for an undefended one: the reading that flatters a defence.

    Architecture changes (PRECODE) are in the model that the server broadcasts, so even this attacker has them.
    """

    attack: Attack

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """As the attack does, without `Knowledge.defense`."""
        forgetful = replace(observation, knowledge=replace(observation.knowledge, defense=None, draws=None))
        return effort.of(self.attack, forgetful)


@ATTACKS.register("adapted", needs="defense, and what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Adapted(SearchingAttack):
    """`attack` by one who knows the defence: not applicable to one who does not.

    An attack that is given the defence uses it by itself (see `Matching.counters`), so where `knows` holds the defence
    this is `attack`; the name says so in a comparison with `Naive`.
    """

    attack: Attack

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """As the attack does."""
        if observation.knowledge.defense is None:
            return Reconstruction.not_applicable("needs the client's defence (knows: defense)")
        return effort.of(self.attack, observation)


def _for_the_zeros(defense: Defense, observation: Observation) -> str:
    known = observation.knowledge
    view = cohort_view(known.local_training or FedSGD(), known.defense or defense, observation.update, known.draws)
    return "" if view.support is not None else "zeros on the wire, which averaging or a later stage has filled"


SUPPORT_MASK = Counter(
    "support-mask",
    "which entries were left out is plain to see, and what was sent is exact: only that is compared",
    missing=_for_the_zeros,
)
"""Part of every simulation by one who knows the defence. Where secure aggregation or a later stage has filled the
zeros, simulations still leave entries out, by their own sizes."""

SIMULATED_CLIPPING = Counter(
    "simulated-clipping",
    "clipping is differentiable and part of every simulation; a cosine does not notice that of a whole update",
)

COUNTERS |= dict.fromkeys((TopK, RandomK, Prune, Soteria), SUPPORT_MASK)
COUNTERS |= dict.fromkeys((Clip, ClipExamples, ClipLayers), SIMULATED_CLIPPING)
