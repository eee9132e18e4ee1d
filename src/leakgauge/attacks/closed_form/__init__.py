"""Attacks without a search."""

from leakgauge.attacks.closed_form.linear import LinearRead as LinearRead
from leakgauge.attacks.closed_form.linear import ServerRead as ServerRead
from leakgauge.attacks.closed_form.patches import PatchRead as PatchRead
from leakgauge.attacks.closed_form.row_differences import RowDifferences as RowDifferences
from leakgauge.attacks.closed_form.single import RankOneRead as RankOneRead
from leakgauge.attacks.closed_form.tokens import TokenRead as TokenRead
