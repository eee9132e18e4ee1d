"""MKOR's construction for LeNet-5: pixels pass through sigmoids and average pools, and come back by two logits."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.errors import InputError, require
from leakgauge.servers.convolutions import smoothed
from leakgauge.servers.mkor import FeatureMap
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import Tensors

SMALLEST = 16
"""Pixels a side below which the second pooling leaves nothing, or a single cell."""


def lenet5(
    *,
    classes: int = 10,
    channels: int = 1,
    size: int = 28,
    filters: tuple[int, int] = (6, 16),
    padding_mode: Literal["zeros", "replicate"] = "zeros",
) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) as in MKOR: two 5×5 convolutions, average pools by 2, three linear layers, sigmoids.

    conv1 c→6 (padding 2), sigmoid, pool; conv2 6→16 (no padding), sigmoid, pool; 400→120 sigmoid, 120→84 sigmoid,
    84→classes. 61 706 parameters at 10 classes, 1 channel and 28 px; torch's default initialisation. Every
    filter of conv2 reads all maps of conv1, unlike the 1998 network.

    Args:
        filters: of the two convolutions. MKOR needs 4 and 16 for each colour channel, i.e. 12 and 48 for RGB.
        padding_mode: of conv1; MKOR's release changes it to ``replicate``, which alters no feature that it reads.
    """
    require(size >= SMALLEST, "size", f"is {size}", f"give at least {SMALLEST} pixels")
    first, second = filters
    side = (size // 2 - 4) // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(channels, first, 5, padding=2, padding_mode=padding_mode)
    layers["sigmoid1"], layers["pool1"] = nn.Sigmoid(), nn.AvgPool2d(2)
    layers["conv2"] = nn.Conv2d(first, second, 5)
    layers["sigmoid2"], layers["pool2"] = nn.Sigmoid(), nn.AvgPool2d(2)
    layers["flatten"] = nn.Flatten()
    layers["fc1"], layers["sigmoid3"] = nn.Linear(second * side * side, 120), nn.Sigmoid()
    layers["fc2"], layers["sigmoid4"] = nn.Linear(120, 84), nn.Sigmoid()
    layers["fc3"] = nn.Linear(84, classes)
    return nn.Sequential(layers)


FIT = "give lenet5, or a network with its convolutions"
LEFT_UP = ((2, 2), (2, 1), (1, 2), (1, 1))
RIGHT_DOWN = ((2, 2), (2, 3), (3, 2), (3, 3))
"""Taps of the two convolutions by direction d: what a 5×5 kernel reads when only this entry is one."""

SMOOTH_FROM = 0.1
"""Noise, relative to each tensor's standard deviation, from which the release smooths."""


@dataclass(frozen=True, eq=False)
class Reached:
    """A layer in the order of computation, and what it was given."""

    name: str
    module: nn.Module
    inputs: Tensor


def reached(task: Task, inputs: Float[Tensor, "n *shape"]) -> list[Reached]:
    """Convolutions and linear layers in the order in which the model computes them, and their inputs."""
    found: list[Reached] = []
    handles = []
    for name, module in task.module.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):

            def keep(module: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                found.append(Reached(name, module, given[0].detach()))

            handles.append(module.register_forward_pre_hook(keep))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def below_linear(task: Task, generator: torch.Generator) -> tuple[Float[Tensor, "n *shape"], list[Reached], Reached]:
    """A random raw probe, the convolutions that it passes through, and the first linear layer that it reaches."""
    like = next(iter(task.parameters.values()))
    probe = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    probe = task.data.low + task.data.range * probe
    layers = reached(task, probe)
    linear = next((layer for layer in layers if isinstance(layer.module, nn.Linear)), None)
    if linear is None:
        raise InputError("model", "has no linear layer", FIT)
    return probe, layers[: layers.index(linear)], linear


def tapped(task: Task, layer: Reached, outputs: int, fit: str) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a 5×5 convolution, its first `outputs` filters emptied for taps.

    Raises:
        InputError: the layer is no 5×5 convolution of stride 1, or has fewer filters.
    """
    conv, name = layer.module, layer.name
    assert isinstance(conv, nn.Conv2d)
    plain = (conv.kernel_size, conv.stride, conv.dilation, conv.groups) == ((5, 5), (1, 1), (1, 1), 1)
    require(plain, "model", f"layer '{name}' is no plain 5×5 convolution of stride 1", fit)
    state = {**task.parameters, **task.buffers}
    weight, bias = state[f"{name}.weight"].clone(), state.get(f"{name}.bias")
    require(
        weight.shape[0] >= outputs,
        "model",
        f"layer '{name}' has {weight.shape[0]} filters and {outputs} are needed",
        "set filters, or fewer colour channels",
    )
    weight[:outputs] = 0
    if bias is not None:
        bias = bias.clone()
        bias[:outputs] = 0
    return weight, bias


def to_unit(task: Task, layer: Reached, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scale and offset by which the first convolution takes model input to (raw − low) / range, a channel each.

    Raises:
        InputError: the offset is not zero and the layer has no bias.
    """
    data = task.data
    like = next(iter(task.parameters.values()))
    channels = data.shape[0]
    scale = like.new_tensor(data.std).expand(channels) / data.range
    offset = (like.new_tensor(data.mean).expand(channels) - data.low) / data.range
    require(
        bias is not None or not bool(offset.any()),
        "model",
        f"layer '{layer.name}' has no bias, and the data are shifted by their mean",
        "give the layer a bias, or leave the normalisation out",
    )
    return scale, offset


def confirmed(task: Task, state: Tensors, probe: Tensor, expected: Tensor, positions: Tensor, fit: str) -> None:
    """Raises `InputError` unless the crafted layers compute `expected` in what reaches the first linear layer."""
    linear = next(layer for layer in reached(task.with_state(state), probe) if isinstance(layer.module, nn.Linear))
    got = linear.inputs
    fits = got.ndim == 2 and got.shape[1] > int(positions.max())
    same = fits and bool(torch.allclose(got[:, positions], expected.to(got), rtol=1e-4, atol=1e-5))
    require(same, "model", f"computes something else between its convolutions and layer '{linear.name}'", fit)


@dataclass(frozen=True)
class LeNet5Map:
    """What the crafted convolutions of LeNet-5 compute, and the way back.

    With u = (raw − low)/range, P the 2×2 means of σ(u) at every place and S the means of σ(P) over steps {0, 2}²:
    the features are S at all places with rows and columns from 3 on, 4m of each. S(a, b) is a nested mean of the
    4×4 window whose corner is (a, b); it is read as the pixel (a + 2, b + 2), so pictures come back as
    a 4×4 box blur. Rows and columns 5 … 4m + 4 are recovered; the frame is not seen and is set to `low`. At 28 px,
    m = 5: 20×20 pixels, and a frame of 5 on the left and top, 3 on the right and bottom.

    σ∘σ takes [0, 1] to [.622, .675]: noise on a feature grows about 19 times on the way back. It is nearly straight
    there: 1000 MNIST images come back within .04 of their box blur, class means of features within .015 of mean images.

    Attributes:
        data: format and range.
        smooth: blur the result with a 5×5 Gaussian, σ 10, edges replicated.
    """

    data: DataSpec
    smooth: bool = False

    @property
    def remark(self) -> str:
        return "the frame of the picture is not seen and is set to the darkest value"

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of each feature map, m."""
        rows, columns = self.data.shape[1:]
        return (rows // 2 - 4) // 2, (columns // 2 - 4) // 2

    @property
    def positions(self) -> Int[Tensor, " f"]:
        rows, columns = self.cells
        return torch.arange(16 * self.data.shape[0] * rows * columns)

    def _places(self) -> tuple[Int[Tensor, "1 16 1 m 1"], Int[Tensor, "1 16 1 1 m"]]:
        """Where in S, counted from row and column 3, the feature of direction d₁ + 4·d₂ and cell (h, w) stands."""
        direction = torch.arange(16)
        left_up, right_down = (torch.tensor(taps) - 2 for taps in (LEFT_UP, RIGHT_DOWN))
        step = left_up[direction % 4] + 2 * right_down[direction // 4]
        rows, columns = (4 * torch.arange(m) + 1 for m in self.cells)
        row, column = step[:, 0, None] + rows, step[:, 1, None] + columns
        return row.view(1, 16, 1, -1, 1), column.view(1, 16, 1, 1, -1)

    def features(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        unit = (inputs - self.data.low) / self.data.range
        first = F.avg_pool2d(torch.sigmoid(unit), 2, stride=1).sigmoid()
        height, width = (side - 2 for side in first.shape[-2:])
        four = [first[..., i : i + height, j : j + width] for i in (0, 2) for j in (0, 2)]
        dense = torch.stack(four).mean(0)[..., 3:, 3:]
        row, column = self._places()
        channel = torch.arange(dense.shape[1]).view(1, 1, -1, 1, 1)
        example = torch.arange(len(dense)).view(-1, 1, 1, 1, 1)
        return dense[example, channel, row, column].flatten(1)

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        n, channels = len(features), self.data.shape[0]
        rows, columns = self.cells
        # Clamped as in the release: the nearest numbers to 0 and 1 that float32 keeps apart from them.
        unit = features.logit(eps=3e-8).logit(eps=3e-8).view(n, 16, channels, rows, columns)
        canvas = unit.new_zeros((n, *self.data.shape))
        row, column = self._places()
        channel, example = torch.arange(channels).view(1, 1, -1, 1, 1), torch.arange(n).view(-1, 1, 1, 1, 1)
        canvas[example, channel, row + 5, column + 5] = unit
        canvas = filled(canvas)
        canvas = smoothed(canvas) if self.smooth else canvas
        return self.data.low + self.data.range * canvas.clamp(0, 1)


def filled(images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    """Pixels that were not seen (NaN) get the mean of the seen ones among their eight neighbours, ring by ring."""
    while bool((missing := images.isnan()).any()) and not bool(missing.flatten(1).all(1).any()):
        known = F.avg_pool2d((~missing).to(images), 3, stride=1, padding=1)
        near = F.avg_pool2d(images.nan_to_num(nan=0.0), 3, stride=1, padding=1)
        images = torch.where(missing & (known > 0), near / known, images)
    return images.nan_to_num(nan=0.0)


@dataclass(frozen=True, kw_only=True)
class LeNet5Taps:
    """Four directions towards left and up in the first convolution, then right and down in the second.

    Source: MKOR, section on LeNet, as its code builds it: filter c + C·d₁ of the first and c + C·(d₁ + 4·d₂) of the
    second convolution are empty but for one tap, bias 0; filters that are not read keep their values. The first
    convolution also undoes the data's normalisation (tap std/range, bias (mean − low)/range), which the release
    does not have. The padding is never read.

    Attributes:
        noise: standard deviation of the noise that the attacker expects, relative to that of each tensor. From
            0.1 on the pictures are smoothed, as in the release.
    """

    noise: float = 0.0

    def __post_init__(self) -> None:
        require(self.noise >= 0, "noise", f"is {self.noise}", "give a number ≥ 0")

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, FeatureMap]:
        """Raises `InputError` where the network is no LeNet-5 below its linear layers."""
        require(task.data.is_image, "data", f"has examples of shape {task.data.shape}", "give images")
        probe, convolutions, _ = below_linear(task, generator)
        number = len(convolutions)
        require(number == 2, "model", f"has {number} convolutions below its linear layers, not two", FIT)
        channels = task.data.shape[0]
        state: Tensors = {}
        one, two = convolutions
        weight, bias = tapped(task, one, 4 * channels, FIT)
        scale, offset = to_unit(task, one, bias)
        for c in range(channels):
            for d, (row, column) in enumerate(LEFT_UP):
                weight[c + channels * d, c, row, column] = scale[c]
        if bias is not None:
            bias[: 4 * channels] = offset.repeat(4)
            state[f"{one.name}.bias"] = bias
        state[f"{one.name}.weight"] = weight
        weight, bias = tapped(task, two, 16 * channels, FIT)
        for read in range(4 * channels):
            for d, (row, column) in enumerate(RIGHT_DOWN):
                weight[read + 4 * channels * d, read, row, column] = 1
        state[f"{two.name}.weight"] = weight
        if bias is not None:
            state[f"{two.name}.bias"] = bias
        found = LeNet5Map(task.data, smooth=self.noise >= SMOOTH_FROM)
        require(min(found.cells) > 0, "data", f"has images of shape {task.data.shape}", "give at least 16 pixels")
        confirmed(task, state, probe, replace(found, smooth=False).features(probe), found.positions, FIT)
        return state, found
