"""What can be said about risk without running an attack."""

from leakgauge.risk.jacobian import Rank, random_batch, update_rank
from leakgauge.risk.layers import LayerCount, ModelCount, count_layers

__all__ = ["LayerCount", "ModelCount", "Rank", "count_layers", "random_batch", "update_rank"]
