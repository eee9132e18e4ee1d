"""MKOR's modified LeNet, and the convolutions that copy the picture in it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float, Int
from torch import nn

from leakgauge.errors import require
from leakgauge.servers.mkor import FeatureMap
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import Tensors
from reproduce.mkor.lenet5 import below_linear, confirmed, filled, tapped, to_unit

IDENTITY_FIT = (
    "give modified-lenet5, or a chain of 5×5 convolutions that keep the size, with ReLUs, before the linear layers"
)


@dataclass(frozen=True)
class IdentityMap:
    """The features are the picture itself, (raw − low)/range flattened; the way back is its inverse, clamped."""

    data: DataSpec

    @property
    def remark(self) -> str:
        return ""

    @property
    def positions(self) -> Int[Tensor, " f"]:
        return torch.arange(prod(self.data.shape))

    def features(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        return ((inputs - self.data.low) / self.data.range).flatten(1)

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        return self.data.low + self.data.range * filled(features.clamp(0, 1).view(-1, *self.data.shape))


@dataclass(frozen=True)
class IdentityTaps:
    """Every convolution copies its channels: a centre tap of one, bias 0.

    Source: MKOR's code for the rows that its tables call *modified LeNet* and *modified VGG16*. There is no
    construction left to invert: with the identity below it, one linear layer reads the raw picture, and its
    gradient holds each class's mean picture (`leakgauge.attacks.closed_form.LinearRead` reads a single example
    off such a layer without any crafting). SSIM 1 and infinite PSNR in those rows say nothing about LeNet or VGG16.

    The first convolution undoes the data's normalisation, so that values are in [0, 1] and pass the ReLUs.
    """

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, FeatureMap]:
        """Raises `InputError` where the layers below the first linear one are not such convolutions."""
        require(task.data.is_image, "data", f"has examples of shape {task.data.shape}", "give images")
        probe, convolutions, _ = below_linear(task, generator)
        require(bool(convolutions), "model", "has no convolution before its linear layers", IDENTITY_FIT)
        channels = task.data.shape[0]
        state: Tensors = {}
        for depth, layer in enumerate(convolutions):
            weight, bias = tapped(task, layer, channels, IDENTITY_FIT)
            scale, offset = (weight.new_ones(channels), weight.new_zeros(channels))
            if depth == 0:
                scale, offset = to_unit(task, layer, bias)
            for c in range(channels):
                weight[c, c, 2, 2] = scale[c]
            state[f"{layer.name}.weight"] = weight
            if bias is not None:
                bias[:channels] = offset
                state[f"{layer.name}.bias"] = bias
        found = IdentityMap(task.data)
        confirmed(task, state, probe, found.features(probe), found.positions, IDENTITY_FIT)
        return state, found


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
