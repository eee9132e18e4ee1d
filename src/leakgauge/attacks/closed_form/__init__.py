"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead

__all__ = ["LinearRead"]
