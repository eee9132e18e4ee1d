"""VGG networks (Simonyan and Zisserman, 2015): 3×3 convolutions, max-pools and linear layers, nothing else."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.registry import MODELS

Padding = Literal["zeros", "reflect", "replicate", "circular"]

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
"""Output channels of the convolutions; a max-pool by two ends each block."""


class VGG(nn.Module):
    """Layers under torchvision's names: ``features.N``, ``avgpool``, ``classifier.N``.

    torchvision averages what the last pool leaves to 7×7, which is the identity at 224 px; here the target is
    what this size leaves, so it is the identity at every size.
    """

    def __init__(self, features: nn.Sequential, side: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((side, side))
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images in the model's normalisation."""
        out: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return out


@MODELS.register("vgg", needs="images")
def vgg(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    blocks: tuple[tuple[int, ...], ...] = ((32, 32), (64, 64), (128, 128)),
    hidden: tuple[int, ...] = (256,),
    batch_norm: bool = False,
    dropout: float = 0.0,
    bias: bool = True,
    padding_mode: Padding = "zeros",
) -> nn.Module:
    """A VGG of any depth; by default six convolutions and two linear layers, for 32 and 64 px.

    814 122 parameters at 10 classes, 3 channels and 32 px. Torch's default initialisation, from torch's global
    generator. Pools that would leave nothing are left out.

    Args:
        blocks: filters of the convolutions; a max-pool by two ends each block.
        hidden: units of the hidden linear layers; none leaves one linear layer.
        batch_norm: a BatchNorm after each convolution.
        dropout: after each hidden linear layer.
        bias: of the convolutions.
        padding_mode: of the convolutions, as `torch.nn.Conv2d` takes it.
    """
    require(bool(blocks) and all(blocks), "model.blocks", "holds a block without filters", "give ((32, 32), (64,))")
    layers: list[nn.Module] = []
    before, side = channels, size
    for block in blocks:
        for after in block:
            layers.append(nn.Conv2d(before, after, 3, padding=1, bias=bias, padding_mode=padding_mode))
            layers += [nn.BatchNorm2d(after)] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            before = after
        if side > 1:
            layers.append(nn.MaxPool2d(2))
            side //= 2
    units = before * side * side
    head: list[nn.Module] = []
    for width in hidden:
        head += [nn.Linear(units, width), nn.ReLU(inplace=True), nn.Dropout(dropout)]
        units = width
    return VGG(nn.Sequential(*layers), side, nn.Sequential(*head, nn.Linear(units, classes)))


@MODELS.register("vgg16", needs="images")
def vgg16(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 224,
    width: float = 1.0,
    hidden: int = 4096,
    batch_norm: bool = False,
    dropout: float = 0.5,
    bias: bool = True,
    padding_mode: Padding = "zeros",
) -> nn.Module:
    """VGG16: thirteen 3×3 convolutions (64 to 512 filters), five max-pools, three linear layers.

    138 357 544 parameters at 1000 classes, 3 channels and 224 px. Torch's default initialisation (torchvision
    draws its own), from torch's global generator. Below 32 px the pools that would leave nothing are left out.

    Args:
        width: factor on the channels, which are rounded to whole numbers of at least 1.
        hidden: units of the two hidden linear layers.
        batch_norm: a BatchNorm after each convolution.
        dropout: after each hidden linear layer.
        bias: of the convolutions.
        padding_mode: of the convolutions, as `torch.nn.Conv2d` takes it.
    """
    blocks = tuple(tuple(max(1, round(width * filters)) for filters in block) for block in VGG16_BLOCKS)
    return vgg(
        classes=classes,
        channels=channels,
        size=size,
        blocks=blocks,
        hidden=(hidden, hidden),
        batch_norm=batch_norm,
        dropout=dropout,
        bias=bias,
        padding_mode=padding_mode,
    )
