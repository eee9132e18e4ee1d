"""Networks of the papers, by name."""

from leakgauge.models.convnet import convnet
from leakgauge.models.lenet import lenet
from leakgauge.models.mlp import mlp
from leakgauge.models.resnet import resnet18, resnet20

__all__ = ["convnet", "lenet", "mlp", "resnet18", "resnet20"]
