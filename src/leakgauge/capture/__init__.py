"""Capturing rounds as they happen."""

from leakgauge.capture.listening import unbroken
from leakgauge.capture.recorder import EXAMPLES, Recorder, RoundExamples, named, round_folder, seen, watching

__all__ = [
    "EXAMPLES",
    "Recorder",
    "RoundExamples",
    "named",
    "round_folder",
    "seen",
    "unbroken",
    "watching",
]
