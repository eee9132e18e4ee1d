"""ResNets for small pictures and for 224 px."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from leakgauge.models.small import ACTIVATIONS, Activation
from leakgauge.registry import MODELS


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, before: int, after: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.act1 = act()
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.act2 = act()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(out + self.shortcut(x))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, four times as wide at the end, and a shortcut (He et al., 2016)."""

    def __init__(self, before: int, width: int, stride: int, act: type[nn.Module]) -> None:
        super().__init__()
        after = 4 * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = act()
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act2 = act()
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.act3 = act()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(self.act2(self.bn2(self.conv2(out)))))
        return self.act3(out + self.shortcut(x))  # type: ignore[no-any-return]


BLOCKS: dict[type[nn.Module], int] = {BasicBlock: 1, Bottleneck: 4}
"""Kinds of block, and how many times their width they give out."""


def _resnet(
    blocks: Sequence[int],
    width: int,
    classes: int,
    channels: int,
    activation: Activation,
    block: type[nn.Module] = BasicBlock,
) -> nn.Module:
    act = ACTIVATIONS[activation]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    before = width
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers.append(block(before, width * 2**stage, 2 if stage and not i else 1, act))
            before = width * 2**stage * BLOCKS[block]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


@MODELS.register("resnet20", needs="images")
def resnet20(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet20-4 of Inverting Gradients: three stages of three blocks, widths 64/128/256, 4.3 M parameters."""
    return _resnet((3, 3, 3), width, classes, channels, activation)


@MODELS.register("resnet32", needs="images")
def resnet32(*, classes: int = 10, channels: int = 3, width: int = 160, activation: Activation = "relu") -> nn.Module:
    """ResNet32-10 of Inverting Gradients: three stages of five blocks, widths 160/320/640, 46.4 M parameters."""
    return _resnet((5, 5, 5), width, classes, channels, activation)


@MODELS.register("resnet18", needs="images")
def resnet18(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-18 for 32 px: 3×3 stem without pooling, widths 64–512, 11.17 M parameters, Kaiming fan-out."""
    return _resnet((2, 2, 2, 2), width, classes, channels, activation)


@MODELS.register("resnet34", needs="images")
def resnet34(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-34 for 32 px: as `resnet18` with 3, 4, 6 and 3 blocks, 21.28 M parameters."""
    return _resnet((3, 4, 6, 3), width, classes, channels, activation)


@MODELS.register("resnet50", needs="images")
def resnet50(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-50 for 32 px: as `resnet34` with bottleneck blocks, 23.52 M parameters."""
    return _resnet((3, 4, 6, 3), width, classes, channels, activation, Bottleneck)


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


class StridedBottleneck(nn.Module):
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
        self,
        block: type[Basic] | type[StridedBottleneck],
        blocks: Sequence[int],
        classes: int,
        channels: int,
        act: type[nn.Module],
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
    return ResNet(StridedBottleneck, (3, 4, 6, 3), classes, channels, ACTIVATIONS[activation])


@MODELS.register("resnet152-imagenet", needs="images, made for 224 px")
def resnet152_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-152 for 224 px, 60.19 M parameters at 1 000 classes."""
    return ResNet(StridedBottleneck, (3, 8, 36, 3), classes, channels, ACTIVATIONS[activation])
