"""Small networks: MLP, ConvNets, LeNets."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import nn

from leakgauge.errors import require
from leakgauge.registry import MODELS


@MODELS.register("mlp")
def mlp(
    *,
    classes: int = 10,
    shape: Sequence[int] = (3, 32, 32),
    hidden: Sequence[int] = (64,),
    activation: Activation = "relu",
    bias: bool = True,
) -> nn.Module:
    """Linear layers on the flattened input, torch's default initialisation. Its first layer gives the input away."""
    require(all(units > 0 for units in hidden), "hidden", f"is {list(hidden)}", "give positive numbers of units")
    sizes = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))


@MODELS.register("convnet", needs="images of at least 9 px")
def convnet(*, classes: int = 10, channels: int = 3, size: int = 32, width: int = 64) -> nn.Module:
    """ConvNet-D: eight 3×3 convolutions with BatchNorm and ReLU, two max-pools by 3, one linear layer.

    Widths D, 2D, 2D, 4D, 4D, 4D, pool, 4D, 4D, pool; 2.9 M parameters at D = 64 (the paper's), torch's
    default initialisation. The published definition names two layers alike, so that only eight remain.
    """
    widths = [width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width, 4 * width, 4 * width]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = channels
    for i, after in enumerate(widths):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"relu{i}"] = nn.ReLU()
        before = after
        if i in (5, 7):
            layers[f"pool{i}"] = nn.MaxPool2d(3)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(before * (size // 3 // 3) ** 2, classes)
    return nn.Sequential(layers)


def _positive(name: str, value: int) -> None:
    require(value > 0, name, f"is {value}", "give a positive number")


@MODELS.register("small-convnet", needs="images of at least 8 px")
def small_convnet(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    width: int = 16,
    activation: Literal["gelu", "relu", "tanh"] = "gelu",
) -> nn.Module:
    """Three convolutions of stride 2 with D, 2D and 4D filters (5×5, 3×3, 3×3), and one linear layer; no normalisation.

    34 602 parameters at D = 16 and 32 px, torch's default initialisation. Made for federated training in simulation:
    examples do not mix, so that per-example clipping is defined; GELU has no kinks, so that attacks that need
    curvature keep their power (`is_smooth`); and nothing is pooled, which is what costs on a CPU.
    """
    require(size >= 8, "size", f"is {size}", "give at least 8 pixels")
    _positive("width", width)
    act: type[nn.Module] = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    side = (size + 7) // 8
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, stride=2, padding=2),
        act(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        act(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        act(),
        nn.Flatten(),
        nn.Linear(4 * width * side * side, classes),
    )


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
