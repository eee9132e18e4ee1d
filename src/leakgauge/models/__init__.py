"""Networks of the papers, by name."""

from leakgauge.models.autoencoder import Autoencoder
from leakgauge.models.convnet import convnet
from leakgauge.models.identity_linear import modified_lenet5
from leakgauge.models.lenet import lenet
from leakgauge.models.lenet5 import lenet5
from leakgauge.models.mlp import mlp
from leakgauge.models.resnet import resnet18, resnet20, resnet32, resnet34, resnet50
from leakgauge.models.resnet_imagenet import resnet18_imagenet, resnet50_imagenet, resnet152_imagenet
from leakgauge.models.rog_networks import rog_lenet, rog_resnet18, rog_vgg7
from leakgauge.models.small import one_convolution, one_hidden_layer, small_convnet, two_convolutions
from leakgauge.models.vgg import vgg, vgg16

__all__ = [
    "Autoencoder",
    "convnet",
    "lenet",
    "lenet5",
    "mlp",
    "modified_lenet5",
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
    "rog_lenet",
    "rog_resnet18",
    "rog_vgg7",
    "small_convnet",
    "two_convolutions",
    "vgg",
    "vgg16",
]
