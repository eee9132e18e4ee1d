"""CI-Net's small target, which the package does not name."""

from __future__ import annotations

from torch import nn

from leakgauge.models.networks import ACTIVATIONS, Activation


def two_convolutions(
    *, classes: int = 10, channels: int = 3, size: int = 32, activation: Activation = "sigmoid"
) -> nn.Module:
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
