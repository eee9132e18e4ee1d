"""Servers: the honest one, and dishonest ones as positive controls for audits and for the check of received models."""

from leakgauge.servers.imprint import ClassFishing as ClassFishing
from leakgauge.servers.imprint import Imprint as Imprint
from leakgauge.servers.imprint import ImprintBlock as ImprintBlock
from leakgauge.servers.imprint import LinearFirst as LinearFirst
from leakgauge.servers.imprint import TrapWeights as TrapWeights
from leakgauge.servers.mkor import MKOR as MKOR
from leakgauge.servers.server import Broadcast as Broadcast
from leakgauge.servers.server import Change as Change
from leakgauge.servers.server import Honest as Honest
from leakgauge.servers.server import Server as Server
