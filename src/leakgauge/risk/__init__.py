"""What can be said about risk without running an attack."""

from leakgauge.risk.jacobian import LayerCount as LayerCount
from leakgauge.risk.jacobian import ModelCount as ModelCount
from leakgauge.risk.jacobian import Rank as Rank
from leakgauge.risk.jacobian import count_layers as count_layers
from leakgauge.risk.jacobian import random_batch as random_batch
from leakgauge.risk.jacobian import update_rank as update_rank
