"""MKOR: a dishonest server that reads one picture a class from a batch of any size, in closed form."""

from leakgauge.servers.mkor.heads import Constant
from leakgauge.servers.mkor.inconspicuous import Inconspicuous
from leakgauge.servers.mkor.losses import AbsentClass, Decoy, NLLRaw
from leakgauge.servers.mkor.mkor import MKOR
from leakgauge.servers.mkor.taps import PublishedTaps, QuietTaps

__all__ = [
    "MKOR",
    "AbsentClass",
    "Constant",
    "Decoy",
    "Inconspicuous",
    "NLLRaw",
    "PublishedTaps",
    "QuietTaps",
]
