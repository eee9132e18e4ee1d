"""Reads of whole batches that prove themselves."""

from leakgauge.attacks.exact.peeling import Peeling as Peeling
