"""Capturing rounds as they happen."""

from leakgauge.capture.recorder import (
    EXAMPLES,
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
    "Examples",
    "Recorder",
    "named",
    "round_folder",
    "seen",
    "unbroken",
    "watching",
]
