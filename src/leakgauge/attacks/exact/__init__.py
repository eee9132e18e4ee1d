"""Reads of whole batches that prove themselves."""

from leakgauge.attacks.exact.peeling import Peeling

__all__ = ["Peeling"]
