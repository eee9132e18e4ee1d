"""Every counter, by family of defences."""

from leakgauge.attacks.adaptive import encoding, noise
from leakgauge.attacks.adaptive import rounding as compression
from leakgauge.attacks.adaptive import support as pruning

__all__ = ["compression", "encoding", "noise", "pruning"]
