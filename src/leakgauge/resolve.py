"""Names in a plan → objects. The only place where a string chooses code."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leakgauge.clients import Protocol
from leakgauge.defenses import Compose, Defense
from leakgauge.errors import InputError, blamed_on, did_you_mean, require, within
from leakgauge.observation import Attack
from leakgauge.registry import ATTACKS, CLIENTS, DEFENSES, OPTIMISERS, SERVERS, Entry, Registry, hints, typed

WITH_PARTS = (ATTACKS, CLIENTS, OPTIMISERS, SERVERS)
"""What is made of parts. A model's parameter called `head` is its own."""


WHOLES: dict[Registry, tuple[type, tuple[str, ...]]] = {
    DEFENSES: (Defense, ()),
    ATTACKS: (Attack, ("reconstruct",)),
    CLIENTS: (Protocol, ("local_training", "steps", "kind")),
}
"""What must be made, and what it must have."""
PLAIN = (str, int, float, dict, list)  # what a plan's file can hold; anything else is an object


@dataclass(frozen=True)
class Named:
    """An object and how the plan called it."""

    label: str  #: in reports, e.g. ``fedavg(epochs=5, lr=0.01)``; unique among its kind in a plan.
    value: Any
    names: tuple[str, ...] = ()  #: registered names of its parts: one, or those of a composition; by default the label.
    field: str = dataclasses.field(default="", compare=False)

    @property
    def name(self) -> str:
        """Without parameters, e.g. ``fedavg`` or ``clip + noise``."""
        return " + ".join(self.names) or self.label


def resolve(registry: Registry, spec: Any, field: str) -> Named:
    """A name, ``{name: {parameter: value}}``, or from Python the object itself or ``{label: object}``. Raises
    `InputError`: unknown name or parameter (with the nearest), wrong type or value."""
    spec, called = labelled(spec, field)
    if called is not None:
        return dataclasses.replace(resolve(registry, spec, field), label=called)
    if spec is not None and not isinstance(spec, PLAIN):
        _check_whole(registry, type(spec).__name__, spec, field)
        return Named(label_of(registry, spec), spec, (registered_name(registry, spec),), field)
    name, words = split(spec, field)
    place = f"{field}.{name}"
    with blamed_on(field):
        entry = registry[name]
    found = {key: _argument(registry, entry, key, value, place) for key, value in words.items()}
    arguments = {key: part.value if isinstance(part, Named) else part for key, part in found.items()}
    asked = [p for p in entry.parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    missing = [p.name for p in asked if p.default is p.empty and p.name not in arguments]
    if missing:
        raise InputError(place, f"needs {', '.join(missing)}", f"write {{{name}: {{{missing[0]}: …}}}}")
    with within(place):
        value = entry.build(**arguments)
    _check_whole(registry, name, value, field)
    shown = {key: part.label if isinstance(part, Named) else part for key, part in found.items()}
    return Named(label(name, shown), value, (name,), field)


def labelled(spec: Any, field: str) -> tuple[Any, str | None]:
    """What a person calls a setting, ``{adam: {…}, label: "two epochs"}`` or ``{label: object}``, and the setting
    without it. Raises `InputError` where the label is no text, or stands beside more than one thing."""
    if isinstance(spec, Mapping) and len(spec) == 1:
        ((called, value),) = spec.items()
        return (spec, None) if value is None or isinstance(value, PLAIN) else (value, str(called))
    if not isinstance(spec, dict) or "label" not in spec:
        return spec, None
    rest = {key: value for key, value in spec.items() if key != "label"}
    text = spec["label"]
    require(isinstance(text, str) and bool(text.strip()), f"{field}.label", f"is {text!r}", "give a few words")
    several = f"stands beside {', '.join(map(str, rest))}"
    require(len(rest) == 1, f"{field}.label", several, "label one thing; several defences: {all: [a, b], label: …}")
    return (rest["all"] if list(rest) == ["all"] else rest), str(text)


def registered_name(registry: Registry, value: Any) -> str:
    """The name under which an object's class is registered, or else the class's own."""
    return next((entry.name for entry in registry if entry.build is type(value)), type(value).__name__)


def label_of(registry: Registry, value: Any) -> str:
    """What reports call an object without a label: its registered name and the fields that are not at their default."""
    name = registered_name(registry, value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return name
    shown: dict[str, object] = {}
    for own in dataclasses.fields(value):
        part, kinds = getattr(value, own.name), Registry.of_parts.get(own.name)
        if own.init and isinstance(part, Tensor):
            shown[own.name] = "…"
        elif own.init and part is not own.default and part != own.default:
            shown[own.name] = part if kinds is None or part is None else label_of(kinds, part)
    return label(name, shown)


def _check_whole(registry: Registry, name: str, value: Any, field: str) -> None:
    # By member: `typing` takes everything for an instance of a protocol that is called Protocol.
    whole, members = WHOLES.get(registry, (object, ()))
    fits = all(hasattr(value, member) for member in members) if members else isinstance(value, whole)
    hint = f"give it {', '.join(members)}" if members else "derive it from leakgauge.defenses.Defense"
    kind = f"{type(value).__module__}.{type(value).__name__}"
    require(fits, field, f"'{name}' makes a {kind}, which is no {whole.__name__}", hint)


def resolve_defense(spec: Any, field: str) -> Named:
    spec, called = labelled(spec, field)
    if called is not None:
        return dataclasses.replace(resolve_defense(spec, field), label=called)
    if isinstance(spec, dict) and len(spec) > 1 and spec.keys() <= {entry.name for entry in DEFENSES}:
        wanted = "}, {".join(f"{key}: …" for key in spec)
        raise InputError(field, "holds several defences in one mapping", f"write a list: [{{{wanted}}}]")
    if not isinstance(spec, list):
        return resolve(DEFENSES, spec, field)
    parts = [resolve(DEFENSES, part, f"{field}[{i}]") for i, part in enumerate(spec)]
    names = tuple(name for part in parts for name in part.names)
    with blamed_on(field):
        return Named(" + ".join(p.label for p in parts), Compose(tuple(p.value for p in parts)), names, field)


def split(spec: Any, field: str) -> tuple[str, dict[str, object]]:
    """``name`` or ``{name: {…}}`` or ``{name: null}`` to name and arguments."""
    if isinstance(spec, str):
        return spec, {}
    if isinstance(spec, dict) and len(spec) == 1:
        (name, arguments), *_ = spec.items()
        if isinstance(name, str) and (arguments is None or isinstance(arguments, dict)):
            hint = "put the name in quotes: YAML reads on, off, yes and no as truths"
            for key in arguments or {}:
                require(isinstance(key, str), f"{field}.{name}", f"has a parameter called {key!r}", hint)
            return name, dict(arguments or {})
    raise InputError(field, f"cannot read {spec!r}", "write a name, or {name: {parameter: value}}")


def label(name: str, arguments: Mapping[str, object]) -> str:
    shown = ", ".join(f"{k}={v}" for k, v in arguments.items())
    return f"{name}({shown})" if shown else name


def _argument(registry: Registry, entry: Entry, key: str, value: Any, field: str) -> Any:
    if key not in entry.parameters:
        takers = [e.name for e in registry if e.name != entry.name and key in e.parameters]
        hint = did_you_mean(key, entry.parameters) if entry.parameters else f"{entry.name} takes none"
        if takers and "mean" not in hint:
            hint = f"{' or '.join(takers[:2])} takes it"
        raise InputError(field, f"unknown parameter '{key}'", hint)
    if key in Registry.of_parts and registry in WITH_PARTS:
        optional = value is None and type(None) in typing.get_args(hints(entry.build).get(key))
        return None if optional else resolve(Registry.of_parts[key], value, f"{field}.{key}")
    return typed(entry.build, key, value, f"{field}.{key}")
