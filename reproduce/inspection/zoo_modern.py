"""Architectures of the zoo with branches, attention, depthwise convolutions or recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leakgauge.task import DataSpec
from reproduce.inspection.zoo_dice import Dice


class Dense(nn.Module):
    """One layer of DenseNet: norm, ReLU, 3×3 convolution, concatenated with its input."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(before), nn.Conv2d(before, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


def densenet(dice: Dice, data: DataSpec) -> nn.Module:
    """Three dense blocks with transitions that halve the channels."""
    growth, depth = dice.whole(4, 12), dice.whole(2, 4)
    channels = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(data.shape[0], channels, 3, padding=1, bias=False)]
    for block in range(3):
        for _ in range(depth):
            layers.append(Dense(channels, growth))
            channels += growth
        if block < 2:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, data.classes))


class UNet(nn.Module):
    """Encoder and decoder with two skips, pooled to class scores."""

    def __init__(self, channels: int, width: int, classes: int, norm: bool) -> None:
        super().__init__()

        def double(before: int, after: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size in (before, after):
                layers.append(nn.Conv2d(size, after, 3, padding=1))
                layers += [nn.BatchNorm2d(after)] if norm else []
                layers.append(nn.ReLU())
            return nn.Sequential(*layers)

        self.down1, self.down2, self.bottom = (
            double(channels, width),
            double(width, 2 * width),
            double(2 * width, 4 * width),
        )
        self.up2, self.join2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), double(4 * width, 2 * width)
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, 2), double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        three = self.bottom(F.max_pool2d(two, 2))
        two = self.join2(torch.cat([two, self.up2(three)], 1))
        one = self.join1(torch.cat([one, self.up1(two)], 1))
        return self.head(one).mean((2, 3))  # type: ignore[no-any-return]


def unet(dice: Dice, data: DataSpec) -> nn.Module:
    """U-Net with a mean over positions at its end."""
    return UNet(data.shape[0], dice.whole(4, 12), data.classes, dice.chance(0.5))


class Inverted(nn.Module):
    """Expand 1×1, depthwise 3×3, project 1×1, shortcut where shapes agree (MobileNetV2)."""

    def __init__(self, before: int, after: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = before * expand
        self.same = stride == 1 and before == after
        self.body = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU6(),
            nn.Conv2d(inner, after, 1, bias=False),
        )
        self.last_norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        out = self.last_norm(self.body(x))
        return x + out if self.same else out


def mobile(dice: Dice, data: DataSpec) -> nn.Module:
    """Inverted residuals in three stages."""
    width, expand = 4 * dice.whole(2, 4), dice.pick((2, 4, 6))
    layers: list[nn.Module] = [nn.Conv2d(data.shape[0], width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    before = width
    for stage in range(3):
        for block in range(2):
            layers.append(Inverted(before, width * (stage + 1), 2 if stage and not block else 1, expand))
            before = width * (stage + 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, data.classes))


class Tokens(nn.Module):
    """Patches, a class token and learnt positions (ViT), then encoder layers."""

    def __init__(self, data: DataSpec, patch: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(data.shape[0], width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (data.shape[1] // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(Attending(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, data.classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.positions
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(self.norm(tokens[:, 0]))  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Pre-norm attention and a perceptron of twice the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed = (q @ k.transpose(-1, -2) / (w // self.heads) ** 0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, w))
        return x + self.fall(F.gelu(self.rise(self.norm2(x))))  # type: ignore[no-any-return]


def vit(dice: Dice, data: DataSpec) -> nn.Module:
    """Tiny vision transformer."""
    heads = dice.pick((2, 4))
    return Tokens(data, 4 if data.shape[1] < 40 else 8, heads * dice.pick((8, 12, 16)), heads, dice.whole(1, 4))


def wave(dice: Dice, data: DataSpec) -> nn.Module:
    """One-dimensional convolutions with kernels 5 to 15, with or without BatchNorm."""
    width, kernel, norm, before = dice.whole(6, 24), dice.pick((5, 7, 15)), dice.chance(0.6), data.shape[0]
    layers: list[nn.Module] = []
    for _ in range(dice.whole(2, 4)):
        layers.append(nn.Conv1d(before, width, kernel, 2, kernel // 2))
        layers += [nn.BatchNorm1d(width)] if norm else []
        layers.append(nn.ReLU())
        before, width = width, min(64, 2 * width)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(before, data.classes))


class Recurrent(nn.Module):
    """GRU or LSTM over time, class scores from the last state."""

    def __init__(self, cell: type[nn.GRU] | type[nn.LSTM], channels: int, width: int, classes: int, depth: int) -> None:
        super().__init__()
        self.cell = cell(channels, width, depth, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[..., ::4].transpose(1, 2))[0][:, -1])  # type: ignore[no-any-return]


def recurrent(dice: Dice, data: DataSpec) -> nn.Module:
    """One or two recurrent layers on every fourth sample."""
    return Recurrent(dice.pick((nn.GRU, nn.LSTM)), data.shape[0], dice.whole(12, 64), data.classes, dice.whole(1, 2))
