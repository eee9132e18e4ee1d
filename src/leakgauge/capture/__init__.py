"""Capturing rounds as they happen."""

from leakgauge.capture.listening import unbroken
from leakgauge.capture.recorder import EXAMPLES, Examples, Recorder, named, round_folder, seen, watching

__all__ = [
    "EXAMPLES",
    "Examples",
    "Recorder",
    "named",
    "round_folder",
    "seen",
    "unbroken",
    "watching",
]
