"""Residual networks that only tables and benchmarks use: with bottleneck blocks, and for 224 px (He et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from leakgauge.models.networks import ACTIVATIONS, Activation


class Block(nn.Module):
    """Convolutions with BatchNorm and a shortcut (He et al., 2016); the one of 3×3 that comes first has the stride.

    Args:
        width: channels inside; `expansion` times as many come out.
        shortcut: name of the part beside the convolutions.
    """

    kernels: ClassVar[tuple[int, ...]] = (3, 3)
    expansion: ClassVar[int] = 1

    def __init__(self, before: int, width: int, stride: int, act: type[nn.Module], shortcut: str) -> None:
        super().__init__()
        self.beside, after, given = shortcut, self.expansion * width, before
        for i, kernel in enumerate(self.kernels, 1):
            out = after if i == len(self.kernels) else width
            step = stride if i == self.kernels.index(3) + 1 else 1
            conv = nn.Conv2d(given, out, kernel, stride=step, padding=kernel // 2, bias=False)
            for name, layer in (("conv", conv), ("bn", nn.BatchNorm2d(out)), ("act", act())):
                self.add_module(f"{name}{i}", layer)
            given = out
        beside: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            beside = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after))
        self.add_module(shortcut, beside)

    def forward(self, x: Tensor) -> Tensor:
        out, last = x, len(self.kernels)
        for i in range(1, last + 1):
            out = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(out))
            out = out if i == last else self.get_submodule(f"act{i}")(out)
        return self.get_submodule(f"act{last}")(out + self.get_submodule(self.beside)(x))  # type: ignore[no-any-return]


class Bottleneck(Block):
    """1×1, 3×3 and 1×1 convolutions, four times as wide at the end."""

    kernels = (1, 3, 1)
    expansion = 4


def stages_of(
    block: type[Block], blocks: Sequence[int], width: int, act: type[nn.Module], shortcut: str
) -> list[list[nn.Module]]:
    """The blocks of each stage, whose widths double from stage to stage."""
    stages: list[list[nn.Module]] = []
    before = width
    for stage, count in enumerate(blocks):
        stages.append([])
        for i in range(count):
            stages[-1].append(block(before, width * 2**stage, 2 if stage and not i else 1, act, shortcut))
            before = width * 2**stage * block.expansion
    return stages


def kaiming(net: nn.Module) -> nn.Module:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def _for_small(
    block: type[Block], blocks: Sequence[int], width: int, classes: int, channels: int, activation: Activation
) -> nn.Module:
    act = ACTIVATIONS[activation]
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()]
    layers = [layer for stage in stages_of(block, blocks, width, act, "shortcut") for layer in stage]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width * 8 * block.expansion, classes)
    return kaiming(nn.Sequential(*stem, *layers, *head))


def resnet34(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-34 for 32 px: as `leakgauge.models.resnet18` with 3, 4, 6 and 3 blocks, 21.28 M parameters."""
    return _for_small(Block, (3, 4, 6, 3), width, classes, channels, activation)


def resnet50(*, classes: int = 10, channels: int = 3, width: int = 64, activation: Activation = "relu") -> nn.Module:
    """ResNet-50 for 32 px: as `resnet34` with bottleneck blocks, 23.52 M parameters."""
    return _for_small(Bottleneck, (3, 4, 6, 3), width, classes, channels, activation)


class ResNet(nn.Module):
    """7×7 stem of stride 2, max-pool, four stages, global average, one linear layer; torchvision's names."""

    def __init__(
        self, block: type[Block], blocks: Sequence[int], classes: int, channels: int, act: type[nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.act = act()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        for number, layers in enumerate(stages_of(block, blocks, 64, act, "downsample"), 1):
            self.add_module(f"layer{number}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64 * 2 ** (len(blocks) - 1) * block.expansion, classes)
        kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.act(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def resnet18_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-18 for 224 px, 11.69 M parameters at 1 000 classes."""
    return ResNet(Block, (2, 2, 2, 2), classes, channels, ACTIVATIONS[activation])


def resnet50_imagenet(*, classes: int = 1000, channels: int = 3, activation: Activation = "relu") -> nn.Module:
    """ResNet-50 for 224 px, 25.56 M parameters at 1 000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, channels, ACTIVATIONS[activation])
