"""LeNet as in Deep Leakage from Gradients (Zhu et al., 2019) and Inverting Gradients."""

from __future__ import annotations

from typing import Literal

from torch import nn

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
