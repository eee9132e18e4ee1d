"""The three networks of ROG (Reconstruction from Obfuscated Gradients): untrained, without BatchNorm."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

UNITS = {"lenet": 512, "vgg7": 1024}
"""Units of the first linear layer. With fewer examples than that, this layer alone holds nearly all of the batch."""


def rog_lenet(*, classes: int = 1000, channels: int = 3, size: int = 128) -> nn.Module:
    """ROG's LeNet: two 5×5 convolutions of 32 and 64 filters, each with ReLU and max-pool by 2, then 512 units.

    34.1 M parameters at 1 000 classes and 128 px, 33.6 M of them in the first linear layer, which has no bias, as the
    last has none. Torch's default initialisation.

    Source: ROG's published code; the paper calls it LeNet.
    """
    side = size // 2 // 2
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, UNITS["lenet"], bias=False),
        nn.ReLU(),
        nn.Linear(UNITS["lenet"], classes, bias=False),
    )


def rog_vgg7(*, classes: int = 1000, channels: int = 3, size: int = 128) -> nn.Module:
    """ROG's VGG-7: pairs of 3×3 convolutions of 128, 256 and 512 filters, a max-pool after each pair, then 1 024 units.

    139.8 M parameters at 1 000 classes and 128 px, 134.2 M of them in the first linear layer; linear layers have no
    bias. Torch's default initialisation. With its two linear layers it has eight layers of weights, not seven.

    Source: ROG's published code.
    """
    layers: list[nn.Module] = []
    before = channels
    for width in (128, 256, 512):
        for _ in range(2):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    side = size // 2 // 2 // 2
    units = UNITS["vgg7"]
    head = [nn.Flatten(), nn.Linear(512 * side * side, units, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(units, classes, bias=False))


class Residual(nn.Module):
    """Two 3×3 convolutions without BatchNorm beside an identity, or a 1×1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d y x"]:
        inner: Tensor = self.conv2(F.relu(self.conv1(x)))
        return F.relu(inner + self.shortcut(x))


def rog_resnet18(*, classes: int = 1000, channels: int = 3, size: int = 128) -> nn.Module:
    """ROG's ResNet-18: no BatchNorm, no max-pool, and an 8×8 map that is flattened, not averaged.

    43.9 M parameters at 1 000 classes and 128 px, 32.8 M of them in its linear layer, which has no bias (nor have its
    convolutions); a standard ResNet-18 averages the map and has 0.5 M there. Torch's default initialisation.
    Smaller pictures leave a smaller map; larger ones are averaged to 8×8.

    Source: ROG's published code.
    """
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.ReLU()]
    before = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(before, width, stride), Residual(width, width, 1)]
        before = width
    side = min(8, -(-size // 16))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(512 * side * side, classes, bias=False)
    )
