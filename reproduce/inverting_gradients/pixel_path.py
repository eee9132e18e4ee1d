"""Convolutions that pass pixels on: which pixel each feature is, and the way back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.errors import InputError
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors
from reproduce.inverting_gradients.module_chain import Layer

RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.Hardtanh)
"""The identity from 0 to 1."""
SATURATING: dict[type[nn.Module], tuple[float, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    nn.Sigmoid: (2.0, torch.sigmoid, torch.logit),
    nn.Tanh: (1.0, torch.tanh, torch.atanh),
}
"""Half the width of the interval around 0 that values are brought to before, the function, and its inverse."""
SKIPPED = (nn.Identity, nn.modules.dropout._DropoutNd)
NORMS = (nn.BatchNorm2d,)
FAR = 1e5
"""Beyond any squared distance between two phases."""


@dataclass(frozen=True)
class Tap:
    """What a channel holds at its (0, 0): a colour's brightness u in [0, 1] (or 1 − u) at an offset in pixels."""

    colour: int
    row: float
    column: float
    mirrored: bool = False


@dataclass(frozen=True)
class PixelStep:
    """v ↦ curve(slope·v + shift), as one convolution and the activation behind it do to each value."""

    slope: float
    shift: float
    curve: type[nn.Module] | None = None

    def forward(self, v: Tensor) -> Tensor:
        v = self.slope * v + self.shift
        return v if self.curve is None else SATURATING[self.curve][1](v)

    def back(self, v: Tensor) -> Tensor:
        if self.curve is not None:
            edge = 1e-6
            v = v.clamp(edge, 1 - edge) if self.curve is nn.Sigmoid else v.clamp(edge - 1, 1 - edge)
            v = SATURATING[self.curve][2](v)
        return (v - self.shift) / self.slope


@dataclass
class PixelPath:
    """Where pixels stand after the layers seen so far.

    Attributes:
        taps: one a channel.
        stride: pixels from one position to the next.
        size: rows and columns of the map.
        steps: what was done to every value since the first convolution.
        state: crafted parameters and buffers.
        pooled: whether a pool mixed neighbours.
    """

    data: DataSpec
    taps: list[Tap]
    size: tuple[int, int]
    stride: int = 1
    steps: list[PixelStep] = field(default_factory=list)
    state: Tensors = field(default_factory=dict)
    pooled: bool = False
    started: bool = False

    def interval(self) -> tuple[float, float]:
        """Values of a channel for brightness 0 and 1."""
        v = torch.tensor([0.0, 1.0], dtype=torch.float64)
        for step in self.steps:
            v = step.forward(v)
        return float(v[0]), float(v[1])

    def convolve(
        self, layer: Layer, norm: Layer | None, curve: type[nn.Module] | None, final: int, mirror: bool
    ) -> None:
        """Dirac kernels, one tap each, chosen so that the channels show pixels as far apart as they can.

        Args:
            norm: the BatchNorm behind it, which is neutralised.
            curve: the saturating activation behind it.
            final: pixels between positions at the end of the network.
            mirror: give half of the channels 1 − u (through max-pools they find the darkest pixel).
        """
        conv = layer.module
        assert isinstance(conv, nn.Conv2d)
        kernel, by, pad = _geometry(layer, conv)
        low, high = self.interval()
        half = 0.0 if curve is None else SATURATING[curve][0]
        slope = (2 * half if half else 1.0) / (high - low)
        step = PixelStep(slope, (-half if half else 0.0) - slope * low, curve)
        after = self.stride * by
        options: dict[Tap, tuple[int, int, int]] = {}
        for dy, dx in itertools.product(range(kernel), repeat=2):
            for channel, tap in enumerate(self.taps):
                row = tap.row + self.stride * (dy * conv.dilation[0] - pad)
                column = tap.column + self.stride * (dx * conv.dilation[0] - pad)
                for flip in (False, True) if mirror and not self.started else (False,):
                    moved = Tap(tap.colour, row, column, tap.mirrored != flip)
                    options.setdefault(moved, (channel, dy, dx))
        size = layer.after[-2], layer.after[-1]
        lost = [self._lost(tap, after, size) for tap in options]
        chosen = _spread(list(options), lost, conv.out_channels, after, final)
        weight = torch.zeros(conv.weight.shape, dtype=torch.float64)
        bias = torch.zeros(conv.out_channels, dtype=torch.float64)
        zero = torch.zeros((1, *self.data.shape), dtype=torch.float64)
        offset = (self.data.denormalise(zero)[0, :, 0, 0] - self.data.low) / self.data.range
        gain = (self.data.denormalise(zero + 1) - self.data.denormalise(zero))[0, :, 0, 0] / self.data.range
        for out, tap in enumerate(chosen):
            channel, dy, dx = options[tap]
            if self.started:
                weight[out, channel, dy, dx], bias[out] = step.slope, step.shift
                continue
            sign = -1.0 if tap.mirrored else 1.0
            colour_offset = 1 - offset[tap.colour] if tap.mirrored else offset[tap.colour]
            weight[out, channel, dy, dx] = step.slope * sign * gain[tap.colour]
            bias[out] = step.slope * colour_offset + step.shift
        self.state[f"{layer.name}.weight"] = weight
        self._biases(layer, conv, norm, bias)
        self.taps, self.stride, self.started = chosen, after, True
        self.size = size
        self.steps.append(step)

    def _lost(self, tap: Tap, stride: int, size: tuple[int, int]) -> float:
        """How far a channel reaches over the borders, in pixels."""
        _, height, width = self.data.shape
        below = tap.row + stride * (size[0] - 1) - (height - 1)
        beyond = tap.column + stride * (size[1] - 1) - (width - 1)
        return sum(max(0.0, x) for x in (-tap.row, -tap.column, below, beyond))

    def _biases(self, layer: Layer, conv: nn.Conv2d, norm: Layer | None, bias: Tensor) -> None:
        if conv.bias is not None:
            self.state[f"{layer.name}.bias"] = bias
        elif norm is None and bool((bias.abs() > 1e-12).any()):
            raise InputError("model", f"layer '{layer.name}' has no bias, so negative inputs are lost", "give it one")
        if norm is None:
            return
        module = norm.module
        assert isinstance(module, nn.BatchNorm2d)
        mean = torch.zeros_like(bias) if conv.bias is not None else -bias
        self.state[f"{norm.name}.running_mean"] = mean
        self.state[f"{norm.name}.running_var"] = torch.full_like(bias, 1 - module.eps)
        if module.affine:
            self.state[f"{norm.name}.weight"] = torch.ones_like(bias)
            self.state[f"{norm.name}.bias"] = torch.zeros_like(bias)

    def pool(self, layer: Layer) -> None:
        """A window shows its brightest pixel (its mean): taken for the pixel in its middle."""
        kernel, by, pad = _window(layer)
        shift = self.stride * ((kernel - 1) / 2 - pad)
        self.taps = [replace(t, row=t.row + shift, column=t.column + shift) for t in self.taps]
        self.stride, self.size = self.stride * by, (layer.after[-2], layer.after[-1])
        self.pooled = self.pooled or kernel > 1

    def positions(self) -> tuple[Int[Tensor, " f"], Bool[Tensor, " f"], Bool[Tensor, " f"]]:
        """For each feature (channels outermost) its pixel in the flat image, whether that lies inside, and mirrored."""
        _, height, width = self.data.shape
        colour = torch.tensor([t.colour for t in self.taps]).view(-1, 1, 1)
        row = torch.tensor([t.row for t in self.taps]).view(-1, 1, 1) + self.stride * torch.arange(self.size[0]).view(
            1, -1, 1
        )
        column = torch.tensor([t.column for t in self.taps]).view(-1, 1, 1) + self.stride * torch.arange(
            self.size[1]
        ).view(1, 1, -1)
        row, column = row.round().long(), column.round().long()
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        flat = (colour * height + row.clamp(0, height - 1)) * width + column.clamp(0, width - 1)
        mirrored = torch.tensor([t.mirrored for t in self.taps]).view(-1, 1, 1).expand_as(flat)
        return flat.flatten(), inside.flatten(), mirrored.flatten()

    def brightness(self, features: Float[Tensor, "n f"], mirrored: Bool[Tensor, " f"]) -> Float[Tensor, "n f"]:
        """u from features, by inverting every step."""
        for step in reversed(self.steps):
            features = step.back(features)
        return torch.where(mirrored, 1 - features, features)


def _geometry(layer: Layer, conv: nn.Conv2d) -> tuple[int, int, int]:
    plain = conv.groups == 1 and len({*conv.kernel_size}) == len({*conv.stride}) == len({*conv.dilation}) == 1
    padding: tuple[int, ...] | str = conv.padding
    if padding == "valid":
        padding = (0, 0)
    if padding == "same":
        padding = (conv.dilation[0] * (conv.kernel_size[0] - 1) // 2,) * 2
    if not plain or len({*padding}) != 1:
        raise InputError("model", f"layer '{layer.name}' is grouped or not square", "give plain convolutions")
    return conv.kernel_size[0], conv.stride[0], int(padding[0])


def _window(layer: Layer) -> tuple[int, int, int]:
    module = layer.module
    if isinstance(module, nn.AdaptiveAvgPool2d):
        (h, w), (ah, aw) = layer.before[-2:], layer.after[-2:]
        if h % ah or w % aw or h // ah != w // aw:
            raise InputError("model", f"layer '{layer.name}' averages {h}×{w} to {ah}×{aw}", "give an even pooling")
        return h // ah, h // ah, 0
    numbers = [getattr(module, name) for name in ("kernel_size", "stride", "padding")]
    sides = [n if isinstance(n, int) else n[0] for n in numbers]
    if any(not isinstance(n, int) and len({*n}) != 1 for n in numbers) or getattr(module, "dilation", 1) not in (
        1,
        (1, 1),
    ):
        raise InputError("model", f"layer '{layer.name}' pools windows that are not square", "give square ones")
    return sides[0], sides[1], sides[2]


def _spread(options: list[Tap], lost: list[float], channels: int, after: int, final: int) -> list[Tap]:
    """Farthest-point choice of what channels show.

    First pixels that no chosen channel shows at this stride, then those that lose least at the borders, then pixels far
    from the chosen ones at the final stride. Channels that are left over repeat the choice.
    """
    place = torch.tensor([[t.row, t.column] for t in options], dtype=torch.float64)
    kind = torch.tensor([2 * t.colour + t.mirrored for t in options])
    nearest = torch.full((2, len(options)), FAR, dtype=torch.float64)
    chosen: list[int] = []
    while len(chosen) < channels and bool((nearest[1] > 0).any()):
        score = FAR**2 * nearest[0] - FAR * torch.tensor(lost, dtype=torch.float64) + nearest[1]
        best = int(torch.where(nearest[1] > 0, score, -torch.inf).argmax())
        chosen.append(best)
        for level, period in enumerate((after, final)):
            gap = (place - place[best]).remainder(period)
            gap = torch.minimum(gap, period - gap).square().sum(1)
            nearest[level] = torch.where(kind == kind[best], torch.minimum(nearest[level], gap), nearest[level])
    return [options[chosen[i % len(chosen)]] for i in range(channels)]
