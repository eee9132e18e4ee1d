"""Every registered rule on one received model."""

from __future__ import annotations

import math

from leakgauge.registry import RULES
from leakgauge.servers.inspection.rule import Measurement, Part, Received, Rule


def rules() -> dict[str, Rule]:
    """All registered rules by name."""
    return {entry.name: entry.build() for entry in RULES}


def measure(received: Received) -> dict[str, Measurement]:
    """What every rule saw that has what it needs, by the rule's name.

    Deterministic; `received` is not changed.

    Raises:
        ValueError: a rule broke its contract (a statistic below zero).
    """
    found = {name: rule.measure(received) for name, rule in rules().items() if received.has(rule.needs)}
    return {name: _sound(name, measurement) for name, measurement in found.items()}


def _sound(name: str, measured: Measurement) -> Measurement:
    """The measurement; one whose numbers ran over on this model says that it does not judge it."""
    if not math.isfinite(measured.statistic):
        where = measured.where[0] if measured.where else "the model"
        return Measurement(0.0, measured.where, "Its numbers run over here.", (f"{where}: too large to compute with",))
    if measured.statistic < 0:
        raise ValueError(f"rule '{name}' measured {measured.statistic}")
    return measured


def skipped(received: Received) -> dict[str, tuple[Part, ...]]:
    """Rules that did not run, each with the parts it lacks."""
    lacking = {name: tuple(p for p in rule.needs if not received.has((p,))) for name, rule in rules().items()}
    return {name: parts for name, parts in lacking.items() if parts}
