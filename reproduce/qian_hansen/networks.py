"""Networks of Qian & Hansen, which the package does not name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from leakgauge.errors import require
from leakgauge.models.networks import ACTIVATIONS, Activation


def one_hidden_layer(
    *, classes: int = 10, shape: Sequence[int] = (1, 32, 32), units: int = 8, activation: Activation = "sigmoid"
) -> nn.Module:
    """Qian & Hansen's d → n₁ → n₂ with biases; weights U(−.5, .5), which the paper leaves open (DLG's)."""
    require(units > 0, "units", f"is {units}", "give a positive number")
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), units), ACTIVATIONS[activation](), nn.Linear(units, classes)
    )
    return _uniform(net)


def one_convolution(
    *, classes: int = 10, channels: int = 3, size: int = 32, filters: int = 12, activation: Activation = "sigmoid"
) -> nn.Module:
    """Qian & Hansen's network for Table 6f: one 5×5 convolution of stride 2 with padding 2, one linear layer."""
    require(filters > 0, "filters", f"is {filters}", "give a positive number")
    side = (size - 1) // 2 + 1
    conv = nn.Conv2d(channels, filters, 5, stride=2, padding=2)
    linear = nn.Linear(filters * side * side, classes)
    return _uniform(nn.Sequential(conv, ACTIVATIONS[activation](), nn.Flatten(), linear))


def _uniform(net: nn.Module) -> nn.Module:
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net
