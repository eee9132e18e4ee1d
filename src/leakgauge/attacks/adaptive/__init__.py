"""Attackers who know the defence."""

from leakgauge.attacks.adaptive import encoding, noise, rounding, support  # noqa: F401 - they register their counters
from leakgauge.attacks.adaptive.adapted import Adapted, Naive
from leakgauge.attacks.adaptive.counter import (
    COUNTERS,
    Counter,
    NoneKnown,
    counter_to,
    counter_to_kind,
    counters,
)
from leakgauge.attacks.adaptive.rounding import Likelihood

__all__ = [
    "COUNTERS",
    "Adapted",
    "Counter",
    "Likelihood",
    "Naive",
    "NoneKnown",
    "counter_to",
    "counter_to_kind",
    "counters",
]
