"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead, ServerRead
from leakgauge.attacks.closed_form.patches import PatchRead
from leakgauge.attacks.closed_form.rank_one import RankOneRead
from leakgauge.attacks.closed_form.tokens import TokenRead

__all__ = ["LinearRead", "PatchRead", "RankOneRead", "ServerRead", "TokenRead"]
