"""Networks of the papers, by name."""

from leakgauge.models.parts import of_parts
from leakgauge.models.resnet import (
    resnet18,
    resnet18_imagenet,
    resnet20,
    resnet32,
    resnet34,
    resnet50,
    resnet50_imagenet,
)
from leakgauge.models.small import (
    convnet,
    lenet,
    lenet5,
    mlp,
    small_convnet,
)
from leakgauge.models.vgg import vgg, vgg16

__all__ = [
    "convnet",
    "lenet",
    "lenet5",
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
