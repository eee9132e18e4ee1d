"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.closed_form.server_read import ServerRead

__all__ = ["LinearRead", "ServerRead"]
