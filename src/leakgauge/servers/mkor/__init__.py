"""MKOR: a dishonest server that reads one picture a class from a batch of any size, in closed form."""

from leakgauge.servers.mkor.convolutions import PublishedTaps
from leakgauge.servers.mkor.mkor import MKOR, Constant
from leakgauge.servers.mkor.parts import Decoy, NLLRaw

__all__ = ["MKOR", "Constant", "Decoy", "NLLRaw", "PublishedTaps"]
