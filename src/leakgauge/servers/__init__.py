"""Servers: the honest one, and dishonest ones as positive controls for audits and for the check of received models."""

from leakgauge.servers.imprint import Imprint, ImprintBlock, LinearFirst, TrapWeights
from leakgauge.servers.last_layer import ClassFishing, LabelFlip
from leakgauge.servers.mkor import MKOR
from leakgauge.servers.server import Broadcast, Change, Honest, Server

__all__ = [
    "MKOR",
    "Broadcast",
    "Change",
    "ClassFishing",
    "Honest",
    "Imprint",
    "ImprintBlock",
    "LabelFlip",
    "LinearFirst",
    "Server",
    "TrapWeights",
]
