"""LeNets: Zhu's, LeNet-5, and MKOR's modified network."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from leakgauge.errors import require
from leakgauge.registry import MODELS

Activation = Literal["sigmoid", "tanh", "relu"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


@MODELS.register("lenet", needs="images")
def lenet(*, classes: int = 10, channels: int = 3, size: int = 32, activation: Activation = "sigmoid") -> nn.Module:
    """LeNet (Zhu): three 5×5 convolutions of 12 filters with sigmoids, one linear layer; weights and biases U(−.5, .5).

    15 826 parameters at 10 classes, 3 channels and 32 px. Draws from torch's global generator, as
    module constructors do; the audit seeds it per trial.
    """
    act = ACTIVATIONS[activation]
    side = (((size + 1) // 2) + 1) // 2
    net = nn.Sequential(
        nn.Conv2d(channels, 12, 5, stride=2, padding=2),
        act(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        act(),
        nn.Conv2d(12, 12, 5, stride=1, padding=2),
        act(),
        nn.Flatten(),
        nn.Linear(12 * side * side, classes),
    )
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


SMALLEST = 16
"""Pixels a side below which the second pooling leaves nothing, or a single cell."""


@MODELS.register("lenet5", needs="images of at least 16 px")
def lenet5(
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 28,
    filters: tuple[int, int] = (6, 16),
    padding_mode: Literal["zeros", "replicate"] = "zeros",
) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) as in MKOR: two 5×5 convolutions, average pools by 2, three linear layers, sigmoids.

    conv1 c→6 (padding 2), sigmoid, pool; conv2 6→16 (no padding), sigmoid, pool; 400→120 sigmoid, 120→84 sigmoid,
    84→classes. 61 706 parameters at 10 classes, 1 channel and 28 px; torch's default initialisation. Every
    filter of conv2 reads all maps of conv1, unlike the 1998 network.

    Args:
        filters: of the two convolutions. MKOR needs 4 and 16 for each colour channel, i.e. 12 and 48 for RGB.
        padding_mode: of conv1; MKOR's release changes it to ``replicate``, which alters no feature that it reads.
    """
    require(size >= SMALLEST, "size", f"is {size}", f"give at least {SMALLEST} pixels")
    first, second = filters
    side = (size // 2 - 4) // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(channels, first, 5, padding=2, padding_mode=padding_mode)
    layers["sigmoid1"], layers["pool1"] = nn.Sigmoid(), nn.AvgPool2d(2)
    layers["conv2"] = nn.Conv2d(first, second, 5)
    layers["sigmoid2"], layers["pool2"] = nn.Sigmoid(), nn.AvgPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"], layers["sigmoid3"] = nn.Linear(second * side * side, 120), nn.Sigmoid()
    layers["fc2"], layers["sigmoid4"] = nn.Linear(120, 84), nn.Sigmoid()
    layers["fc3"] = nn.Linear(84, classes)
    return nn.Sequential(layers)


@MODELS.register("modified-lenet5", needs="images")
def modified_lenet5(*, classes: int = 10, channels: int = 1, size: int = 28) -> nn.Module:
    """MKOR's modified LeNet as released: two 5×5 convolutions c→c (stride 1, padding 2, ReLU), one linear layer, ReLU.

    The paper calls it LeNet (or VGG16) with convolutions of stride 2 in place of pools. What runs in the release
    has stride 1 and no pool, and serves MNIST, CIFAR-100 and ImageNet alike: attacking it is reading the input of
    one linear layer. 7 902 parameters at 10 classes, 1 channel and 28 px.

    A ReLU stands after the last layer, as in the release. With non-negative weights and no bias an all-black
    image has logits of exactly zero, where ReLU's derivative is zero: such an example has no gradient at all.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for name in ("1", "2"):
        layers[f"conv{name}"] = nn.Conv2d(channels, channels, 5, padding=2)
        layers[f"relu{name}"] = nn.ReLU()
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(channels * size * size, classes)
    layers["relu3"] = nn.ReLU()
    return nn.Sequential(layers)
