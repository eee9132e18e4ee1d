"""Capturing rounds as they happen."""

from leakgauge.capture.recorder import (
    EXAMPLES,
    UPDATE,
    WEIGHTS,
    Examples,
    Recorder,
    named,
    round_folder,
    seen,
    unbroken,
    watching,
)

__all__ = [
    "EXAMPLES",
    "UPDATE",
    "WEIGHTS",
    "Examples",
    "Recorder",
    "named",
    "round_folder",
    "seen",
    "unbroken",
    "watching",
]
