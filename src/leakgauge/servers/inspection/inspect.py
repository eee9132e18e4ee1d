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
        ValueError: a rule broke its contract (a statistic below zero or not finite).
    """
    found = {name: rule.measure(received) for name, rule in rules().items() if received.has(rule.needs)}
    for name, measurement in found.items():
        if not (math.isfinite(measurement.statistic) and measurement.statistic >= 0):
            raise ValueError(f"rule '{name}' measured {measurement.statistic}")
    return found


def skipped(received: Received) -> dict[str, tuple[Part, ...]]:
    """Rules that did not run, each with the parts it lacks."""
    lacking = {name: tuple(p for p in rule.needs if not received.has((p,))) for name, rule in rules().items()}
    return {name: parts for name, parts in lacking.items() if parts}
