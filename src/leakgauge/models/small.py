"""The small networks of Qian & Hansen and of CI-Net's ablation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from leakgauge.models.lenet import ACTIVATIONS
from leakgauge.registry import MODELS


@MODELS.register("one-hidden-layer")
def one_hidden_layer(
    *, classes: int = 10, shape: Sequence[int] = (1, 32, 32), units: int = 8, activation: str = "sigmoid"
) -> nn.Module:
    """Qian & Hansen's d → n₁ → n₂ with biases; weights U(−.5, .5), which the paper leaves open (DLG's)."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), units), ACTIVATIONS[activation](), nn.Linear(units, classes)
    )
    return _uniform(net)


@MODELS.register("one-convolution", needs="images")
def one_convolution(
    *, classes: int = 10, channels: int = 3, size: int = 32, filters: int = 12, activation: str = "sigmoid"
) -> nn.Module:
    """Qian & Hansen's network for Table 6f: one 5×5 convolution of stride 2 with padding 2, one linear layer."""
    side = (size - 1) // 2 + 1
    conv = nn.Conv2d(channels, filters, 5, stride=2, padding=2)
    linear = nn.Linear(filters * side * side, classes)
    return _uniform(nn.Sequential(conv, ACTIVATIONS[activation](), nn.Flatten(), linear))


@MODELS.register("two-convolutions", needs="images")
def two_convolutions(*, classes: int = 10, channels: int = 3, size: int = 32, activation: str = "sigmoid") -> nn.Module:
    """CI-Net's small target: two convolutions and a linear layer, 0.33 M parameters at 32 px.

    The paper gives no widths: 16 and 32 filters of 3×3 make 332 778.
    """
    act = ACTIVATIONS[activation]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        act(),
        nn.Conv2d(16, 32, 3, padding=1),
        act(),
        nn.Flatten(),
        nn.Linear(32 * size * size, classes),
    )


def _uniform(net: nn.Module) -> nn.Module:
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net
