"""Which attacker knows which defence: every defence has a named counter, or says that none is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leakgauge.defenses import Defense, parts_of
from leakgauge.observation import Observation

if TYPE_CHECKING:
    from leakgauge.attacks.matching.engine import Matching

Adapt = Callable[["Matching", Any, Observation], "Matching"]
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
    """No counter is known, with the reason. An audit says so; it does not call the defence safe."""

    reason: str


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
