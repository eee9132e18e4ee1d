"""Servers: the honest one, and dishonest ones as positive controls."""

from leakgauge.servers.server import Broadcast, Change, Crafting, Honest, Server

__all__ = ["Broadcast", "Change", "Crafting", "Honest", "Server"]
