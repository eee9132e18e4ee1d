"""Names of things, resolved once at the edge (plan and command line).

A part registers its constructor under a name; library code takes the object, never the name.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from leakgauge.errors import FOREIGN, InputError, did_you_mean, said
from leakgauge.own_code import own_module

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A registered constructor: what it makes, and what it needs to work."""

    name: str
    build: Callable[..., Any]
    needs: str = ""

    @property
    def summary(self) -> str:
        """First line of the constructor's docstring."""
        return (inspect.getdoc(self.build) or "").split("\n")[0]

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Keyword parameters, as the plan may give them."""
        return inspect.signature(self.build).parameters


class Registry:
    """One namespace, e.g. of attacks."""

    def __init__(self, kind: str, packages: tuple[str, ...]) -> None:
        self.kind, self._packages = kind, packages
        self._entries: dict[str, Entry] = {}

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
        """The entry of that name, or of ``your_package.module:attribute``.

        Raises:
            InputError: no such name; the mend is the nearest one.
        """
        self._load()
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return Entry(name, self._imported(name))
        raise InputError(self.kind, f"unknown name '{name}'", did_you_mean(name, self._entries))

    def _imported(self, name: str) -> Callable[..., Any]:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(own_module(module), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            raise InputError(
                self.kind,
                f"cannot import '{name}' ({error})",
                "write your_package.module:function, importable from here",
            ) from error
        except FOREIGN as error:
            raise InputError(
                self.kind, f"cannot import '{name}': the module raises {said(error)}", "mend the module"
            ) from error
        if not callable(found):
            raise InputError(self.kind, f"'{name}' is not callable", "name a class or a function")
        return found  # type: ignore[no-any-return]

    def _load(self) -> None:
        for package in self._packages:
            importlib.import_module(package)


MODELS = Registry("model", ("leakgauge.models",))
DATA = Registry("data", ("leakgauge.data",))
CLIENTS = Registry("clients", ("leakgauge.clients",))
OPTIMISERS = Registry("optimiser", ("leakgauge.clients",))
DEFENSES = Registry("defenses", ("leakgauge.defenses",))
SERVERS = Registry("server", ("leakgauge.servers",))
RULES = Registry("rule", ("leakgauge.inspection",))
TAPS = Registry("taps", ("leakgauge.servers.mkor",))
HEADS = Registry("head", ("leakgauge.servers.mkor",))
LOSSES = Registry("loss", ("leakgauge.servers.mkor",))
ATTACKS = Registry(
    "attacks",
    (
        "leakgauge.attacks.recipes",
        "leakgauge.attacks.closed_form",
        "leakgauge.attacks.exact",
        "leakgauge.attacks.matching",
        "leakgauge.attacks.adaptive",
    ),
)
METRICS = Registry("metrics", ("leakgauge.metrics",))
OBJECTIVES = Registry("objective", ("leakgauge.attacks.matching", "leakgauge.attacks.adaptive"))
PRIORS = Registry("prior", ("leakgauge.attacks.matching",))
CANVASES = Registry("canvas", ("leakgauge.attacks.matching",))
MINIMISERS = Registry("minimiser", ("leakgauge.attacks.matching",))
LABELS = Registry("labels", ("leakgauge.attacks.labels", "leakgauge.attacks.matching"))
