"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead, ServerRead
from leakgauge.attacks.closed_form.patches import PatchRead
from leakgauge.attacks.closed_form.rank_one import RankOneRead
from leakgauge.attacks.closed_form.tokens import TokenRead
from leakgauge.attacks.closed_form.whole_batch import BatchRead

__all__ = ["BatchRead", "LinearRead", "PatchRead", "RankOneRead", "ServerRead", "TokenRead"]
