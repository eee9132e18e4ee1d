"""`leakgauge list`: what a plan may name."""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leakgauge.attacks.adaptive import Counter, NoneKnown, counter_to_kind
from leakgauge.defenses import NoDefense
from leakgauge.registry import (
    ATTACKS,
    CANVASES,
    CLIENTS,
    DATA,
    DEFENSES,
    HEADS,
    LABELS,
    LOSSES,
    METRICS,
    MINIMISERS,
    MODELS,
    OBJECTIVES,
    OPTIMISERS,
    PRIORS,
    RULES,
    SERVERS,
    TAPS,
    Entry,
    Registry,
)
from leakgauge.resolve import hints

REGISTRIES: dict[str, Registry] = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "metrics": METRICS,
    "models": MODELS,
    "data": DATA,
    "clients": CLIENTS,
    "optimisers": OPTIMISERS,
    "objectives": OBJECTIVES,
    "priors": PRIORS,
    "canvases": CANVASES,
    "minimisers": MINIMISERS,
    "labels": LABELS,
    "servers": SERVERS,
    "taps": TAPS,
    "heads": HEADS,
    "losses": LOSSES,
    "rules": RULES,
}


def _parameters(entry: Entry) -> str:
    def one(p: inspect.Parameter) -> str:
        if p.default is p.empty:
            return p.name
        plain = p.default is None or isinstance(p.default, bool | int | float | str | tuple)
        if isinstance(p.default, tuple) and any(isinstance(v, Enum) for v in p.default):
            return f"{p.name}={', '.join(str(v.value) if isinstance(v, Enum) else str(v) for v in p.default)}"
        return f"{p.name}={p.default}" if plain else f"{p.name}=…"

    return ", ".join(one(p) for p in entry.parameters.values()) or "–"


def _counter(entry: Entry) -> Counter | NoneKnown | None:
    """What an attacker who knows this defence does; `None` for the one that is none."""
    made: Any = entry.build if inspect.isclass(entry.build) else hints(entry.build)["return"]
    return None if made is NoDefense else counter_to_kind(made)


def show(kind: str) -> None:
    """Prints the registry of that kind as a table; defences with what counters them, explained below."""
    console, table, defenses = Console(), Table(title=kind, show_lines=True), kind == "defenses"
    for column in ("name", "what", "parameters", "needs", *(["countered by"] if defenses else [])):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    told: dict[str, str] = {}
    for entry in REGISTRIES[kind]:
        cells = [entry.name, entry.summary, _parameters(entry), entry.needs or "–"]
        if defenses:
            match _counter(entry):
                case Counter(name=name, because=because):
                    cells.append(name)
                    told[name] = because
                case NoneKnown(reason=reason):
                    cells.append("none known")
                    told[f"{entry.name}, none known"] = reason
                case None:
                    cells.append("–")
        table.add_row(*map(escape, cells))
    console.print(table)
    for name, why in told.items():
        console.print(f"[bold]{escape(name)}[/bold]: {escape(why)}")
