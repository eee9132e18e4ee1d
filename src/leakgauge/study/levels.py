"""How far attacks and defences can be relied on: versions and what shows levels, as `levels.yaml` has it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from leakgauge.registry import ATTACKS, DEFENSES, Registry
from leakgauge.resolve import Named, registered_name
from leakgauge.study.grammar import read_yaml

LEVELS = ("oracle", "held-out", "fuzzed dry", "replicated outside")
"""From the least on; a part is vetted where a later one is shown beside the first."""


@dataclass(frozen=True)
class Standing:
    """A part's version, 0 where it is none of this package's; and level → what shows it, from the least on."""

    version: int = 0
    shown: Mapping[str, str] = field(default_factory=dict)

    @property
    def level(self) -> str:
        """The last that is shown; "none" without the first."""
        return [*self.shown][-1] if LEVELS[0] in self.shown else "none"


_table = cache(partial(read_yaml, Path(__file__).with_name("levels.yaml")))


def standing(kind: str, name: str) -> Standing:
    """Of a registered attack or defence (`kind`: attacks or defenses)."""
    words = _table().get(kind, {}).get(name, {})
    return Standing(words.get("version", 0), {level: words[level] for level in LEVELS if level in words})


def _names(registry: Registry, named: Named) -> Iterator[str]:
    """Of a part and of the attacks that it is made of."""
    yield from named.names
    for key, kind in Registry.of_parts.items():
        if kind is registry and (part := getattr(named.value, key, None)) is not None:
            yield from _names(registry, Named("", part, (registered_name(registry, part),)))


def standings(attacks: Iterable[Named], defenses: Iterable[Named]) -> dict[str, dict[str, dict[str, object]]]:
    """Version and level of each attack and defence that a plan uses, as report.json keeps them."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for registry, parts in ((ATTACKS, attacks), (DEFENSES, defenses)):
        names = sorted({name for part in parts for name in _names(registry, part)})
        each = {name: standing(registry.kind, name) for name in names}
        found[registry.kind] = {name: {"version": one.version, "level": one.level} for name, one in each.items()}
    return found


def unvetted(kept: Mapping[str, Any]) -> Iterator[str]:
    """What of an audit's parts is not vetted, in words; all of them where it was run before levels were kept."""
    for kind in (ATTACKS.kind, DEFENSES.kind):
        for name, told in kept.get(kind, {f"its {kind}": {"level": "not kept: run the audit anew"}}).items():
            if told["level"] not in LEVELS[1:]:
                yield f"{name} is not vetted (level: {told['level']})"
