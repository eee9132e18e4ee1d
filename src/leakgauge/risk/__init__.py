"""What can be said about risk without running an attack."""

from leakgauge.risk.bracket import Bracket, error_bracket, relative_noise
from leakgauge.risk.counting import (
    OneHidden,
    highest_rank,
    needed_rows,
    rank_of,
)
from leakgauge.risk.jacobian import Rank, random_batch, update_rank
from leakgauge.risk.layers import LayerCount, ModelCount, count_layers

__all__ = [
    "Bracket",
    "LayerCount",
    "ModelCount",
    "OneHidden",
    "Rank",
    "count_layers",
    "error_bracket",
    "highest_rank",
    "needed_rows",
    "random_batch",
    "rank_of",
    "relative_noise",
    "update_rank",
]
