"""Networks of the papers, by name."""

from leakgauge.models.feedforward import convnet, lenet, mlp, of_parts, small_convnet, vgg, vgg16
from leakgauge.models.resnet import (
    resnet18,
    resnet18_imagenet,
    resnet20,
    resnet32,
    resnet34,
    resnet50,
    resnet50_imagenet,
)

__all__ = [
    "convnet",
    "lenet",
    "mlp",
    "of_parts",
    "resnet18",
    "resnet18_imagenet",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet50",
    "resnet50_imagenet",
    "small_convnet",
    "vgg",
    "vgg16",
]
