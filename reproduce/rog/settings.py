"""ROG's clients and defences: what its figures have in common."""

from __future__ import annotations

from reproduce.rog.runs import Client, Named

REDUCED = Client(size=64, examples=8)
PUBLISHED = Client(size=128, examples=16)
PUBLISHED_STEPS = (1, 5)

UNIFORM = Named("uniform, 3 bits", {"quantise": {"levels": 3}})
QSGD = Named("QSGD, 3 bits", {"qsgd": {"levels": 3}})
TOPK = Named("top-k, 95 % zeros", {"topk": {"keep": 0.05}})
SIGNS = Named("signs", "sign")
SOTERIA = Named("Soteria, 80 %", {"soteria": {"prune": 80.0, "layer": "9"}})
PRECODE = Named("PRECODE", "precode")


def fed_cdp(snr: float) -> Named:
    """By signal-to-noise ratio, in dB."""
    return Named(f"Fed-CDP, {snr:g} dB", {"fed-cdp": {"snr": snr}})


COMPRESSED = (UNIFORM, QSGD, TOPK)
NOISY = tuple(fed_cdp(snr) for snr in (0.0, -5.0, -10.0, -15.0, -20.0))
