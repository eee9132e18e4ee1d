"""Networks of the papers: MLP, ConvNets, LeNets, VGG (Simonyan and Zisserman, 2015), ResNets for small pictures; any
behind one tensor; and CI-Net's generator, which makes pictures, as a pure function of its weights."""

import copy
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import Checked, limited, require
from leakgauge.registry import MODELS
from leakgauge.tensors import Tensors


@MODELS.register("mlp")
def mlp(
    *,
    classes: int = 10,
    shape: Sequence[int] = (3, 32, 32),
    hidden: Sequence[int] = (64,),
    activation: "Activation" = "relu",
    bias: bool = True,
) -> nn.Module:
    """Linear layers on the flattened input, torch's default initialisation. Its first layer gives the input away."""
    require(all(units > 0 for units in hidden), "hidden", f"is {list(hidden)}", "give positive numbers of units")
    sizes = [math.prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after, bias=bias), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], classes, bias=bias))


@MODELS.register("convnet", needs="images of at least 9 px")
def convnet(*, classes: int = 10, channels: int = 3, size: int = 32, width: int = 64) -> nn.Module:
    """ConvNet-D: eight 3×3 convolutions with BatchNorm and ReLU, two max-pools by 3, one linear layer.

    Widths D, 2D, 2D, 4D, 4D, 4D, pool, 4D, 4D, pool; 2.9 M parameters at D = 64 (the paper's), torch's
    default initialisation. The published definition names two layers alike, so that only eight remain.
    """
    widths = [width * factor for factor in (1, 2, 2, 4, 4, 4, 4, 4)]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (before, after) in enumerate(pairwise([channels, *widths])):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"relu{i}"] = nn.ReLU()
        if i in (5, 7):
            layers[f"pool{i}"] = nn.MaxPool2d(3)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(widths[-1] * (size // 3 // 3) ** 2, classes)
    return nn.Sequential(layers)


@MODELS.register("small-convnet", needs="images of at least 8 px")
def small_convnet(
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    width: int = 16,
    activation: Literal["gelu", "relu", "tanh"] = "gelu",
) -> nn.Module:
    """Three convolutions of stride 2 with D, 2D and 4D filters (5×5, 3×3, 3×3), and one linear layer; no normalisation.

    34 602 parameters at D = 16 and 32 px, torch's default initialisation. Made for federated training in simulation:
    examples do not mix, so that per-example clipping is defined; GELU has no kinks, so that attacks that need
    curvature keep their power (`is_smooth`); and nothing is pooled, which is what costs on a CPU.
    """
    require(size >= 8, "size", f"is {size}", "give at least 8 pixels")
    require(width > 0, "width", f"is {width}", "give a positive number")
    act: type[nn.Module] = {"gelu": nn.GELU, "relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    return _convolutions(((width, 5, 2), (2 * width, 3, 2), (4 * width, 3, 2)), act, classes, channels, size)


def _convolutions(
    layers: Sequence[tuple[int, int, int]], act: type[nn.Module], classes: int, channels: int, size: int
) -> nn.Module:
    """Convolutions of so many filters, of that kernel and stride, each with its activation, and one linear layer."""
    made: list[nn.Module] = []
    before, side = channels, size
    for filters, kernel, stride in layers:
        made += [nn.Conv2d(before, filters, kernel, stride=stride, padding=kernel // 2), act()]
        before, side = filters, math.ceil(side / stride)
    return nn.Sequential(*made, nn.Flatten(), nn.Linear(before * side * side, classes))


Activation = Literal["sigmoid", "tanh", "relu"]

ACTIVATIONS: dict[Activation, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


@MODELS.register("lenet", needs="images")
def lenet(*, classes: int = 10, channels: int = 3, size: int = 32, activation: Activation = "sigmoid") -> nn.Module:
    """LeNet (Zhu): three 5×5 convolutions of 12 filters with sigmoids, one linear layer; weights and biases U(−.5, .5).

    15 826 parameters at 10 classes, 3 channels and 32 px. Draws from torch's global generator, as
    module constructors do; the audit seeds it per trial.
    """
    net = _convolutions(((12, 5, 2), (12, 5, 2), (12, 5, 1)), ACTIVATIONS[activation], classes, channels, size)
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


Padding = Literal["zeros", "reflect", "replicate", "circular"]

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


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
        bias, padding_mode: of the convolutions, as `torch.nn.Conv2d` takes them.
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
    units, head = [before * side * side, *hidden], list[nn.Module]()
    for wide, narrow in pairwise(units):
        head += [nn.Linear(wide, narrow), nn.ReLU(inplace=True), nn.Dropout(dropout)]
    # Under torchvision's names. It averages what the last pool leaves to 7×7, which is the identity at 224 px; here the
    # target is what this size leaves, so it is the identity at every size.
    parts = {"features": nn.Sequential(*layers), "avgpool": nn.AdaptiveAvgPool2d((side, side)), "flat": nn.Flatten()}
    return nn.Sequential(OrderedDict(parts, classifier=nn.Sequential(*head, nn.Linear(units[-1], classes))))


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
    draws its own), from torch's global generator. Below 32 px the pools that would leave nothing are left out. `width`
    is a factor on the channels, rounded to at least 1; `hidden` is of two layers, and the rest as in `vgg`.
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


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut (He et al., 2016); the first strides as the width grows."""

    def __init__(self, before: int, width: int, act: type[nn.Module]) -> None:
        super().__init__()
        stride = 1 if before == width else 2
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1, self.act1 = nn.BatchNorm2d(width), act()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2, self.act2 = nn.BatchNorm2d(width), act()
        self.shortcut: nn.Module = nn.Identity()
        if before != width:
            narrow = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(narrow, nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.act1(self.bn1(self.conv1(x)))))
        return self.act2(out + self.shortcut(x))  # type: ignore[no-any-return]


def _resnet(blocks: Sequence[int], width: int, classes: int, channels: int, activation: Activation) -> nn.Module:
    """So many blocks in each stage, whose widths double from stage to stage; Kaiming fan-out."""
    act = ACTIVATIONS[activation]
    widths = [width * 2**stage for stage, count in enumerate(blocks) for _ in range(count)]
    stem = nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act()
    made = [Block(before, after, act) for before, after in pairwise([width, *widths])]
    net = nn.Sequential(*stem, *made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))
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


def of_parts(module: nn.Module, *shapes: tuple[int, ...]) -> nn.Module:
    """A copy of a module of several inputs that takes them in one row of numbers: parameters keep their names. Its
    ``forward`` takes as many tensors as there are `shapes`, those of one example's inputs, in order. Raises
    `InputError`: no shape, or an empty one."""
    require(bool(shapes) and all(map(math.prod, shapes)), "shapes", f"are {shapes}", "give each input's shape")

    def forward(self: nn.Module, flat: Float[Tensor, "n numbers"]) -> Any:
        parts = flat.flatten(1).split([math.prod(shape) for shape in shapes], 1)
        return kind.forward(self, *(part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)))

    kind, made = type(module), copy.deepcopy(module)
    made.__class__ = type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__})
    return made


CORE, LARGEST = 4, 256  # side in pixels of the first picture, and of the largest that the published widths are for


@runtime_checkable
class PictureNetwork(Protocol):
    """Untrained network from a code to a picture in (−1, 1), whose output layer is a tanh."""

    def code(self, examples: int, size: int, generator: torch.Generator) -> Float[Tensor, "n *code"]:
        """A random code for each example."""

    def weights(self, examples: int, channels: int, size: int, generator: torch.Generator) -> Tensors:
        """Fresh weights for square pictures of at least `size` pixels, float64."""

    def __call__(self, weights: Tensors, code: Float[Tensor, "n *code"]) -> Float[Tensor, "n c s s"]:
        """Pictures, differentiable in both."""


def stages(size: int) -> int:
    """How often the core of 4 px must be doubled to hold `size` pixels."""
    require(0 < size <= LARGEST, "size", f"is {size}", f"give pictures of at most {LARGEST} px")
    return max(0, math.ceil(math.log2(size / CORE)))


def _uniform(shape: tuple[int, ...], fan: int, generator: torch.Generator) -> Tensor:
    """U(±1/√fan), torch's own start of convolutions."""
    return (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1) / math.sqrt(fan)


def normed(x: Tensor, weights: Tensors, name: str) -> Tensor:
    """BatchNorm with the statistics of the pictures at hand, and leaky ReLU of slope .1."""
    out = F.batch_norm(x, None, None, weights[f"{name}.scale"], weights[f"{name}.shift"], training=True)
    return F.leaky_relu(out, 0.1)


def spectral(weight: Float[Tensor, "o *rest"]) -> Float[Tensor, "o *rest"]:
    """The weight over its largest singular value, as a matrix of ``o`` rows.

    Source: Miyato et al., 2018. Differs from torch, which keeps a running estimate by one power iteration a
    call: here the value and its derivative are exact, so that the network is a function of its weights alone. Before a
    BatchNorm, as in CI-Net, it changes nothing but BatchNorm's ε: both undo the weight's scale.
    """
    matrix = weight.flatten(1)
    largest: Tensor = torch.linalg.eigvalsh(matrix @ matrix.T)[-1].sqrt()
    return weight / largest


def published_width(examples: int, size: int) -> int:
    """C by CI-Net's published code: 32, doubled while P(G at 32 px) ≤ 4 · examples · size²."""
    width = 32
    while parameter_count(width) <= 4 * examples * size**2:
        width *= 2
    return width


CODE = 128  # numbers of a code


@dataclass(frozen=True, kw_only=True)
class CINetGenerator(Checked):
    """CI-Net's over-parameterised generator, growing from 4×4.

    Code of 128 numbers → transposed convolution to C×4×4, BatchNorm, leaky ReLU .1 → at each of 4, 8, … px two
    times [3×3 convolution with spectral norm and bias, BatchNorm, leaky ReLU .1], enlarged twofold in between →
    1×1 convolution → tanh. C channels up to 32 px, C/2 at 64, C/4 at 128 and 256. BatchNorm always takes the
    statistics of the pictures being made.

    Source: CI-Net's published code; the paper leaves the layers open. Differs: the spectral norm is exact (see
    `spectral`); the last layer at 64 px takes the C/2 channels that are there (theirs expects C and cannot run);
    the start is torch's own.
    """

    #: C, at least 4; by default `published_width`.
    width: int | None = limited(None, lambda width: width >= 4, "give at least 4 channels")

    def code(self, examples: int, size: int, generator: torch.Generator) -> Float[Tensor, "n *code"]:
        return torch.randn((examples, CODE), generator=generator, dtype=torch.float64)

    def weights(self, examples: int, channels: int, size: int, generator: torch.Generator) -> Tensors:
        width = self.width or published_width(examples, size)
        found: Tensors = {"core": _uniform((CODE, width, CORE, CORE), width * CORE**2, generator)}
        found["core.bias"] = _uniform((width,), width * CORE**2, generator)
        add_norm(found, "core", width)
        before = width
        for stage in range(stages(size) + 1):
            after = width // {4: 2, 5: 4, 6: 4}.get(stage, 1)
            for layer in (0, 1):
                name = f"{stage}.{layer}"
                add_convolution(found, name, before, after, 3, generator)
                add_norm(found, name, after)
                before = after
        add_convolution(found, "picture", before, channels, 1, generator)
        return found

    def __call__(self, weights: Tensors, code: Float[Tensor, "n *code"]) -> Float[Tensor, "n c s s"]:
        x = torch.einsum("nk,kchw->nchw", code, weights["core"]) + weights["core.bias"][:, None, None]
        x, stage = normed(x, weights, "core"), 0
        while f"{stage}.0" in weights:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3) if stage else x  # as CI-Net's code interpolates
            for name in (f"{stage}.0", f"{stage}.1"):
                x = F.conv2d(x, spectral(weights[name]), weights[f"{name}.bias"], padding=1)
                x = normed(x, weights, name)
            stage += 1
        return F.conv2d(x, weights["picture"], weights["picture.bias"]).tanh()


def parameter_count(width: int) -> int:
    """P(G) of `CINetGenerator` for colour pictures of 32 px."""
    return sum(t.numel() for t in CINetGenerator(width=width).weights(1, 3, 32, torch.Generator()).values())


def add_convolution(
    found: Tensors, name: str, before: int, after: int, kernel: int, generator: torch.Generator
) -> None:
    found[name] = _uniform((after, before, kernel, kernel), before * kernel**2, generator)
    found[f"{name}.bias"] = _uniform((after,), before * kernel**2, generator)


def add_norm(found: Tensors, name: str, width: int) -> None:
    found[f"{name}.scale"] = torch.ones(width, dtype=torch.float64)
    found[f"{name}.shift"] = torch.zeros(width, dtype=torch.float64)
