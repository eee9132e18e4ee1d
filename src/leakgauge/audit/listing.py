"""`leakgauge list`: what a plan may name."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.table import Table

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
    PRIORS,
    RULES,
    SERVERS,
    TAPS,
    Entry,
    Registry,
)

REGISTRIES: dict[str, Registry] = {
    "attacks": ATTACKS,
    "defenses": DEFENSES,
    "metrics": METRICS,
    "models": MODELS,
    "data": DATA,
    "clients": CLIENTS,
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
        return f"{p.name}={p.default}" if plain else f"{p.name}=…"

    return ", ".join(one(p) for p in entry.parameters.values()) or "–"


def show(kind: str) -> None:
    """Prints the registry of that kind as a table."""
    table = Table(title=kind, show_lines=True)
    for column in ("name", "what", "parameters", "needs"):
        table.add_column(column, overflow="fold", no_wrap=column == "name")
    for entry in REGISTRIES[kind]:
        table.add_row(entry.name, entry.summary, _parameters(entry), entry.needs or "–")
    Console().print(table)
