"""Names of things, resolved once at the edge (plan and command line), and values checked against their constructors.

A part registers its constructor under a name; library code takes the object, never the name.
"""

import dataclasses
import importlib
import inspect
import math
import os
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

from leakgauge.errors import InputError, did_you_mean, refusing, require


def own_module(name: str) -> ModuleType:
    """The module of that name, from what is installed or else from the working directory.

    The working directory is searched last, and only from the first call on: a file that lies beside a received
    model is never imported in place of an installed package, and not at all unless the user names a module.
    """
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)


def hints(build: Callable[..., Any]) -> Mapping[str, Any]:
    """Types of a constructor's parameters, as far as they are stated where they can be read."""
    own = isinstance(build, type) and not dataclasses.is_dataclass(build)
    module = None if own else inspect.getmodule(build)
    try:
        return typing.get_type_hints(build.__init__ if own else build, vars(module) if module else None)
    except (NameError, TypeError, AttributeError):
        return {}  # names imported for type checkers alone; no function


def typed(build: Callable[..., Any], key: str, value: Any, field: str) -> Any:
    """`value` as the type that the parameter `key` of `build` asks for. Raises `InputError` for another type, what is
    not finite, or a parameter that only code can give."""
    from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError  # slow to import

    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(field, f"is {value}", "give a finite number")
    try:
        return TypeAdapter(hints(build).get(key, Any)).validate_python(value)
    except PydanticSchemaGenerationError as error:
        hint = "name your_package.module:function that sets it"
        raise InputError(field, f"cannot be given in a plan ({key} is code)", hint) from error
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        raise InputError(field, f"is {value!r}", problem[0].lower() + problem[1:]) from error


F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A registered constructor: what it makes, and what it needs to work."""

    name: str
    build: Callable[..., Any]
    needs: str = ""

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.build).parameters


class Registry:
    """One namespace, e.g. of attacks: what `packages` register. `parts` are parameters of other entries that name one
    of its own, e.g. the minimiser of a matching attack."""

    of_parts: typing.ClassVar["dict[str, Registry]"] = {}
    """Parameter → the registry of what it names."""

    def __init__(self, kind: str, packages: tuple[str, ...], *parts: str) -> None:
        self.kind, self._packages = kind, packages
        self._entries: dict[str, Entry] = {}
        self.of_parts.update(dict.fromkeys(parts, self))

    def register(self, name: str, *, needs: str = "") -> Callable[[F], F]:
        """Decorator for a frozen dataclass or a function of keyword arguments."""

        def add(build: F) -> F:
            if name in self._entries and self._entries[name].build is not build:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = Entry(name, build, needs)
            return build

        return add

    def __iter__(self) -> Iterator[Entry]:
        self._load()
        return iter([self._entries[name] for name in sorted(self._entries)])

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name, or of ``your_package.module:attribute``. Raises `InputError` where there is none."""
        self._load()
        if name in self._entries:
            return self._entries[name]
        module, colon, attribute = name.partition(":")
        require(bool(colon), self.kind, f"unknown name '{name}'", did_you_mean(name, self._entries))
        hint = "write your_package.module:function, importable from here"
        with (
            refusing(self.kind, f"cannot import '{name}': the module raises", "fix the module"),
            refusing(self.kind, f"cannot import '{name}'", hint, ModuleNotFoundError, AttributeError),
        ):
            found = getattr(own_module(module), attribute)
        require(callable(found), self.kind, f"'{name}' is not callable", "name a class or a function")
        return Entry(name, found)

    def _load(self) -> None:
        for package in self._packages:
            folder = getattr(importlib.import_module(package), "__path__", ())
            for module in pkgutil.iter_modules(folder, f"{package}."):  # a part of one file registers itself
                importlib.import_module(module.name)


MODELS = Registry("model", ("leakgauge.models",))
DATA = Registry("data", ("leakgauge.data",))
CLIENTS = Registry("clients", ("leakgauge.clients",), "client")
OPTIMISERS = Registry("optimiser", ("leakgauge.clients",), "optimiser")
DEFENSES = Registry("defenses", ("leakgauge.defenses",))
SERVERS = Registry("server", ("leakgauge.servers",))
TAPS = Registry("taps", ("leakgauge.servers.mkor",), "taps")  # taps, heads, losses: parts of MKOR
HEADS = Registry("head", ("leakgauge.servers.mkor",), "head")
LOSSES = Registry("loss", ("leakgauge.servers.mkor",), "loss")
RULES = Registry("rule", ("leakgauge.inspection.rules",))
TRAINING_LOSSES = Registry("training loss", ("leakgauge.clients.local_training",))
METRICS = Registry("metrics", ("leakgauge.metrics",))
ATTACKS = Registry(
    "attacks",
    tuple(f"leakgauge.attacks.{room}" for room in ("recipes", "closed_form", "exact", "matching", "adaptive")),
    *("attack", "then"),
)
OBJECTIVES = Registry("objective", ("leakgauge.attacks.matching", "leakgauge.attacks.adaptive"), "objective")
PRIORS = Registry("prior", ("leakgauge.attacks.matching",), "prior")
CANVASES = Registry("canvas", ("leakgauge.attacks.matching",), "canvas")
MINIMISERS = Registry("minimiser", ("leakgauge.attacks.matching",), "minimiser")
LABELS = Registry("labels", ("leakgauge.attacks.labels", "leakgauge.attacks.matching"), "labels")
