"""Attackers who know the defence."""

from leakgauge.attacks.adaptive import mixup, noise, precode, rounding  # noqa: F401 - they register their counters
from leakgauge.attacks.adaptive.counter import (
    COUNTERS,
    Adapted,
    Counter,
    Naive,
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
