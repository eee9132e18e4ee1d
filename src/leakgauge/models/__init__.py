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
    resnet152_imagenet,
)
from leakgauge.models.small import (
    convnet,
    lenet,
    lenet5,
    mlp,
    one_convolution,
    one_hidden_layer,
    small_convnet,
    two_convolutions,
)
from leakgauge.models.vgg import vgg, vgg16

__all__ = [
    "convnet",
    "lenet",
    "lenet5",
    "mlp",
    "of_parts",
    "one_convolution",
    "one_hidden_layer",
    "resnet18",
    "resnet18_imagenet",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet50",
    "resnet50_imagenet",
    "resnet152_imagenet",
    "small_convnet",
    "two_convolutions",
    "vgg",
    "vgg16",
]
