"""Attacks that learn from public data how updates become examples."""

from leakgauge.attacks.learned.inversion import LearnedInversion
from leakgauge.attacks.learned.sketch import Sketch

__all__ = ["LearnedInversion", "Sketch"]
