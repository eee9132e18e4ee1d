"""Networks of the papers, by name."""

from leakgauge.models.feedforward import convnet, lenet, mlp, of_parts, small_convnet, vgg, vgg16
from leakgauge.models.resnet import resnet18, resnet20

__all__ = [
    "convnet",
    "lenet",
    "mlp",
    "of_parts",
    "resnet18",
    "resnet20",
    "small_convnet",
    "vgg",
    "vgg16",
]
