"""Every counter, by family of defences."""

from leakgauge.attacks.adaptive import compression, encoding, noise, pruning

__all__ = ["compression", "encoding", "noise", "pruning"]
