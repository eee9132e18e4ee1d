"""Attackers who know the defence."""

from leakgauge.attacks.adaptive import encodings, noise  # noqa: F401 - they register their counters
from leakgauge.attacks.adaptive.counter import COUNTERS, Adapted, Counter, Naive, NoneKnown, counter_to, counters

__all__ = ["COUNTERS", "Adapted", "Counter", "Naive", "NoneKnown", "counter_to", "counters"]
