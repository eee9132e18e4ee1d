"""Servers: the honest one, and dishonest ones as positive controls for audits and for the check of received models."""

from leakgauge.servers.fishing import ClassFishing, FeatureFishing
from leakgauge.servers.imprint import Imprint, ImprintBlock, LinearFirst, TrapWeights
from leakgauge.servers.label_flip import LabelFlip
from leakgauge.servers.mkor import MKOR
from leakgauge.servers.server import Broadcast, Change, Honest, Server

__all__ = [
    "MKOR",
    "Broadcast",
    "Change",
    "ClassFishing",
    "FeatureFishing",
    "Honest",
    "Imprint",
    "ImprintBlock",
    "LabelFlip",
    "LinearFirst",
    "Server",
    "TrapWeights",
]
