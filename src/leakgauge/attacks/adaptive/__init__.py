"""Attackers who know the defence."""

from leakgauge.attacks.adaptive import encodings as encodings
from leakgauge.attacks.adaptive import noise as noise
from leakgauge.attacks.adaptive.counter import COUNTERS as COUNTERS
from leakgauge.attacks.adaptive.counter import Adapted as Adapted
from leakgauge.attacks.adaptive.counter import Counter as Counter
from leakgauge.attacks.adaptive.counter import Naive as Naive
from leakgauge.attacks.adaptive.counter import NoneKnown as NoneKnown
from leakgauge.attacks.adaptive.counter import counter_to as counter_to
from leakgauge.attacks.adaptive.counter import counters as counters
