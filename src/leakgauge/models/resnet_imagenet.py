"""Residual networks for 224 px images, with the parameter names that published ImageNet weights have."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from leakgauge.models.lenet import ACTIVATIONS, Activation
from leakgauge.registry import MODELS


class Basic(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act1, self.act2 = act(), act()
        self.downsample = _shortcut(before, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(out + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class Wide(nn.Module):
    """1×1, 3×3 (which has the stride) and 1×1 convolutions, and a shortcut."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.act1, self.act2, self.act3 = act(), act(), act()
        self.downsample = _shortcut(before, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.act2(self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x))))))
        return self.act3(self.bn3(self.conv3(out)) + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


def _shortcut(before: int, after: int, stride: int) -> nn.Module | None:
    if stride == 1 and before == after:
        return None
    return nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))


class ResNet(nn.Module):
    """7×7 stem of stride 2, max-pool, four stages, global average, one linear layer (He et al., 2016)."""

    def __init__(
        self, block: type[Basic] | type[Wide], blocks: Sequence[int], classes: int, channels: int, act: type[nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.act = act()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        before = 64
        for stage, count in enumerate(blocks):
            layers: list[nn.Module] = []
            for i in range(count):
                layers.append(block(before, 64 * 2**stage, 2 if stage and not i else 1, act))
                before = 64 * 2**stage * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.act(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


@MODELS.register("resnet18-imagenet", needs="images, made for 224 px")
def resnet18_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-18 for 224 px, 11.69 M parameters at 1 000 classes."""
    return ResNet(Basic, (2, 2, 2, 2), classes, channels, ACTIVATIONS[activation])


@MODELS.register("resnet50-imagenet", needs="images, made for 224 px")
def resnet50_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-50 for 224 px, 25.56 M parameters at 1 000 classes."""
    return ResNet(Wide, (3, 4, 6, 3), classes, channels, ACTIVATIONS[activation])


@MODELS.register("resnet152-imagenet", needs="images, made for 224 px")
def resnet152_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-152 for 224 px, 60.19 M parameters at 1 000 classes."""
    return ResNet(Wide, (3, 8, 36, 3), classes, channels, ACTIVATIONS[activation])
