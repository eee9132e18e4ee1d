"""MKOR: a dishonest server that reads one picture a class from a batch of any size, in closed form."""

from leakgauge.servers.mkor.convolutions import IdentityTaps
from leakgauge.servers.mkor.heads import Constant, Naive
from leakgauge.servers.mkor.inconspicuous import Inconspicuous
from leakgauge.servers.mkor.lenet5 import LeNet5Taps
from leakgauge.servers.mkor.losses import AbsentClass, CrossEntropy, Decoy, NLLRaw
from leakgauge.servers.mkor.mkor import MKOR, shortcut_update
from leakgauge.servers.mkor.taps import BlockTaps, PublishedTaps, QuietTaps

__all__ = [
    "MKOR",
    "AbsentClass",
    "BlockTaps",
    "Constant",
    "CrossEntropy",
    "Decoy",
    "IdentityTaps",
    "Inconspicuous",
    "LeNet5Taps",
    "NLLRaw",
    "Naive",
    "PublishedTaps",
    "QuietTaps",
    "shortcut_update",
]
