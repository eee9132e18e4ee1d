"""ResNets for small pictures."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from leakgauge.models.feedforward import ACTIVATIONS, Activation
from leakgauge.registry import MODELS


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut (He et al., 2016); the first has the stride."""

    def __init__(self, before: int, width: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1, self.act1 = nn.BatchNorm2d(width), act()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2, self.act2 = nn.BatchNorm2d(width), act()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            narrow = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(out + self.shortcut(x))  # type: ignore[no-any-return]


def _resnet(blocks: Sequence[int], width: int, classes: int, channels: int, activation: Activation) -> nn.Module:
    """So many blocks in each stage, whose widths double from stage to stage; Kaiming fan-out."""
    act, before = ACTIVATIONS[activation], width
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers.append(Block(before, width * 2**stage, 2 if stage and not i else 1, act))
            before = width * 2**stage
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


@MODELS.register("resnet20", needs="images")
def resnet20(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet20-4 of Inverting Gradients: three stages of three blocks, widths 64/128/256, 4.3 M parameters."""
    return _resnet((3, 3, 3), width, classes, channels, activation)


@MODELS.register("resnet18", needs="images")
def resnet18(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-18 for 32 px: 3×3 stem without pooling, widths 64–512, 11.17 M parameters, Kaiming fan-out."""
    return _resnet((2, 2, 2, 2), width, classes, channels, activation)
