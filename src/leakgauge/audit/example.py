"""The plan that runs when none is given. `leakgauge audit --example` prints it."""

from __future__ import annotations

from importlib.resources import files


def example_text() -> str:
    """The embedded plan, comments included."""
    return files("leakgauge.audit").joinpath("example.yaml").read_text(encoding="utf-8")
