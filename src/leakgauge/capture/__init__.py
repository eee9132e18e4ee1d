"""Capturing rounds as they happen."""

from leakgauge.capture.recorder import Recorder, RoundExamples, named, seen, unbroken, watching
from leakgauge.update import EXAMPLES, round_folder

__all__ = ["EXAMPLES", "Recorder", "RoundExamples", "named", "round_folder", "seen", "unbroken", "watching"]
