"""LeNet-5 with sigmoids, the small network of MKOR's experiments."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from leakgauge.errors import require
from leakgauge.registry import MODELS

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
