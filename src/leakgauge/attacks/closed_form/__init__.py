"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead, ServerRead
from leakgauge.attacks.closed_form.patches import PatchRead
from leakgauge.attacks.closed_form.row_differences import RowDifferences
from leakgauge.attacks.closed_form.single import RankOneRead
from leakgauge.attacks.closed_form.tokens import TokenRead

__all__ = ["LinearRead", "PatchRead", "RankOneRead", "RowDifferences", "ServerRead", "TokenRead"]
