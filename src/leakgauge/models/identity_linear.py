"""The "modified network" of MKOR's tables: two convolutions that keep the size, and one linear layer."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakgauge.registry import MODELS


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
