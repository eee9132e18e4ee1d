"""Known causes by name, each of which switches a transformation off, so that one does not hide the others.

Words that `tests/same` expects to fail are off by themselves, until they are taken off its list.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from hunt.relations import Pair
from hunt.zoo import POOLS
from leakgauge.defenses.defense import steps_of
from leakgauge.defenses.steps import DefenseStep, EntryGrid, EntryMask, Noise
from same.known import known

FIELDS = {
    "test_auto_reads_a_layer": ("first",),
    "test_a_head_gives_its_labels": ("head",),
    "test_a_table_gives_its_tokens": ("table",),
    "test_a_layer_of_patches_gives_its_picture": ("patch",),
    "test_the_counts_say_the_same_of_a_layer": ("counts",),
}
"""Test of `tests/same` → the field of a network whose words it tries."""


def known_words() -> dict[str, set[str]]:
    """Field → words that are known not to be read."""
    found: dict[str, set[str]] = {}
    for name in known():
        test, _, cell = name.removesuffix("]").partition("[")
        for field in FIELDS.get(test, ()):
            found.setdefault(field, set()).add(cell.split("-")[0] if field != "head" else cell.rsplit("-", 1)[0])
    return found


KNOWN_WORDS = known_words()


LOUD = 1e-4
"""Noise in shares of an update that is other noise in another basis: of magnitudes and phases .001 leaves
5 times as much of a round unexplained as of the plain form, whatever is spent. Less is rounding in either."""


def _loud(step: DefenseStep) -> bool:
    if not isinstance(step, Noise) or step.scale is None:
        return False
    update = {"update": torch.linspace(-1, 1, 4096)}
    return float(step.scale.of(update)["update"]) * 64 > LOUD * float(update["update"].norm())


def _other_basis(pair: Pair) -> bool:
    """Weights in another basis or in factors, behind a defence that treats entries unlike, or all alike in their own
    basis."""
    net = pair.other.net
    own = [POOLS[field][word] for field in ("first", "head") if (word := getattr(net, field))]
    steps = steps_of(pair.other.defense)
    return any(getattr(s, "own", False) for s in own) and any(
        isinstance(s, EntryMask | EntryGrid) or _loud(s) for s in steps
    )


def _other_defence(pair: Pair) -> bool:
    """A defence that picks a module of the network picks another one, or none, where it is written otherwise."""
    defense = pair.other.defense
    last = bool(pair.other.net.head) and defense.overrides("on_task")
    return pair.relation == "words" and (last or any(step.looks for step in steps_of(defense)))


def _worded(field: str) -> Callable[[Pair], bool]:
    return lambda pair: getattr(pair.other.net, field) in KNOWN_WORDS.get(field, set())


FLAGS: dict[str, tuple[str, Callable[[Pair], bool]]] = {
    "layer words": ("layers are recognised by kind and spelling", _worded("first")),
    "head words": ("labels are read off a linear module that comes last", _worded("head")),
    "table words": ("tables are found by kind and spelling", _worded("table")),
    "patch words": ("patch layers are found by kind", _worded("patch")),
    "basis": ("of a gradient in another basis a defence of single entries leaves something else", _other_basis),
    "modules": ("a defence that picks a module does something else to a network in other words", _other_defence),
    "counts": (
        "the counts know kinds of module",
        lambda pair: pair.relation == "counts" and pair.other.net.first in KNOWN_WORDS.get("counts", set()),
    ),
}
"""Name → what is known, and the pairs that it concerns."""


def flagged(pair: Pair, on: frozenset[str] = frozenset()) -> str:
    """The known cause that a pair would run into; empty where there is none. Those in `on` are tried all the same."""
    return next((name for name, (_, concerns) in FLAGS.items() if name not in on and concerns(pair)), "")
