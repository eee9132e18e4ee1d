"""Architectures of the zoo that are chains of layers or simple residual networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.models import convnet, lenet
from leakgauge.task import DataSpec
from reproduce.inspection.zoo_dice import Dice

Family = Callable[[Dice, DataSpec], nn.Module]
"""Draws an architecture for a data format; weights come from torch's global generator."""

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.ReLU,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.LeakyReLU,
)


class BlurPool(nn.Module):
    """Fixed binomial filter with stride 2 (Zhang, 2019): an honest constant tensor."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("filter", torch.outer(row, row).expand(channels, 1, 3, 3).clone())

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.get_buffer("filter"), stride=2, padding=1, groups=x.shape[1])


def mlp(dice: Dice, data: DataSpec) -> nn.Module:
    """One to four hidden layers, equal or tapering."""
    width, act = int(dice.scale(16, 512)), dice.pick(ACTIVATIONS)
    before, bias, taper = math.prod(data.shape), dice.chance(0.8), dice.chance(0.5)
    layers: list[nn.Module] = [nn.Flatten()]
    for _ in range(dice.whole(1, 4)):
        layers += [nn.Linear(before, width, bias=bias), act()]
        layers += [nn.Dropout(0.5)] if dice.chance(0.2) else []
        before, width = width, max(8, width // 2) if taper else width
    return nn.Sequential(*layers, nn.Linear(before, data.classes, bias=bias))


def lenet_zhu(dice: Dice, data: DataSpec) -> nn.Module:
    """LeNet of Deep Leakage from Gradients, U(−.5, .5)."""
    act = dice.pick(("sigmoid", "sigmoid", "tanh", "relu"))
    return lenet(classes=data.classes, channels=data.shape[0], size=data.shape[1], activation=act)


def lenet5(dice: Dice, data: DataSpec) -> nn.Module:
    """Two 5×5 convolutions with pooling, three linear layers."""
    act, pool = dice.pick(ACTIVATIONS), dice.pick((nn.AvgPool2d, nn.MaxPool2d))
    narrow, wide = dice.pick(((6, 16), (6, 16), (16, 32), (32, 64)))
    side = (data.shape[1] // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(data.shape[0], narrow, 5, padding=2),
        act(),
        pool(2),
        nn.Conv2d(narrow, wide, 5),
        act(),
        pool(2),
        nn.Flatten(),
        nn.Linear(wide * side * side, 120),
        act(),
        nn.Linear(120, max(84, data.classes)),
        act(),
        nn.Linear(max(84, data.classes), data.classes),
    )


def plain(dice: Dice, data: DataSpec) -> nn.Module:
    """Two to five convolutions, kernels 3 or 5, pooling or strides or blur-pooling, one or two linear layers."""
    act, kernel, width = dice.pick(ACTIVATIONS), dice.pick((3, 3, 5)), int(dice.scale(6, 40))
    bias, blur, before, side = dice.chance(0.85), dice.chance(0.15), data.shape[0], data.shape[1]
    layers: list[nn.Module] = []
    for depth in range(dice.whole(2, 5)):
        stride = 2 if side >= 8 and dice.chance(0.6) else 1
        pooled = stride == 2 and dice.chance(0.6)
        layers += [nn.Conv2d(before, width, kernel, 1 if pooled or blur else stride, kernel // 2, bias=bias), act()]
        before, width = width, min(128, int(width * dice.pick((1, 1.5, 2))))
        if stride == 2:
            layers += [BlurPool(before)] if blur else [nn.MaxPool2d(2)] if pooled else []
            side = side // 2 if pooled and not blur else (side + 1) // 2
        layers += [nn.Dropout2d(0.2)] if depth and dice.chance(0.1) else []
    if dice.chance(0.4):
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, data.classes))
    hidden = int(dice.scale(max(16, data.classes), 256))
    head = [nn.Flatten(), nn.Linear(before * side * side, hidden), act(), nn.Linear(hidden, data.classes)]
    return nn.Sequential(*layers, *head)


VGG = {
    6: (1, 1, "M", 2, 2, "M", 4, 4, "M"),
    11: (1, "M", 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"),
    13: (1, 1, "M", 2, 2, "M", 4, 4, "M", 8, 8, "M", 8, 8, "M"),
    16: (1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8, "M"),
}


def vgg_of(data: DataSpec, *, depth: int, width: int, hidden: int, norm: bool, dropout: float) -> nn.Module:
    """VGG (Simonyan & Zisserman): `width` channels in the first stage, eight times as many in the last."""
    layers: list[nn.Module] = []
    before, side = data.shape[0], data.shape[1]
    for entry in VGG[depth]:
        if isinstance(entry, str):
            layers.append(nn.MaxPool2d(2))
            side //= 2
            continue
        layers.append(nn.Conv2d(before, entry * width, 3, padding=1))
        layers += [nn.BatchNorm2d(entry * width)] if norm else []
        layers.append(nn.ReLU())
        before = entry * width
    drop = [nn.Dropout(dropout)] if dropout else []
    head = [nn.Linear(before * side * side, hidden), nn.ReLU(), *drop, nn.Linear(hidden, hidden), nn.ReLU(), *drop]
    return nn.Sequential(*layers, nn.Flatten(), *head, nn.Linear(hidden, data.classes))


def vgg(dice: Dice, data: DataSpec) -> nn.Module:
    """Narrow VGG of 6, 11, 13 or 16 layers' kind, with or without BatchNorm and dropout."""
    return vgg_of(
        data,
        depth=dice.pick((6, 6, 11, 13, 16)),
        width=dice.pick((4, 6, 8, 12)),
        hidden=max(data.classes, dice.pick((64, 128, 256))),
        norm=dice.chance(0.4),
        dropout=dice.pick((0.0, 0.0, 0.5)),
    )


def convnet_bn(dice: Dice, data: DataSpec) -> nn.Module:
    """ConvNet-D of Inverting Gradients, narrow."""
    width = dice.whole(4, 12)
    return convnet(classes=data.classes, channels=data.shape[0], size=data.shape[1], width=width)


class Residual(nn.Module):
    """Two 3×3 convolutions with a norm each and a shortcut; `last_norm` closes the branch."""

    def __init__(self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.last_norm = norm(after)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.last_norm(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def _residual(dice: Dice, data: DataSpec, norm: Callable[[int], nn.Module], blocks: tuple[int, ...]) -> nn.Module:
    width = 4 * dice.whole(2, 5)
    layers: list[nn.Module] = [nn.Conv2d(data.shape[0], width, 3, padding=1, bias=False), norm(width), nn.ReLU()]
    before = width
    for stage in range(3):
        for block in range(dice.pick(blocks)):
            layers.append(Residual(before, width * 2**stage, 2 if stage and not block else 1, norm))
            before = width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, data.classes))


def resnet(dice: Dice, data: DataSpec) -> nn.Module:
    """Narrow ResNet-14 to -20 with BatchNorm."""
    return _residual(dice, data, nn.BatchNorm2d, (2, 3))


def groupnorm(dice: Dice, data: DataSpec) -> nn.Module:
    """The same with GroupNorm, as federated learning recommends."""
    groups = dice.pick((1, 2, 4))
    return _residual(dice, data, lambda width: nn.GroupNorm(groups, width), (1, 2))
