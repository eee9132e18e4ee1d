"""Networks that make pictures: CI-Net's generator as a pure function of its weights, and ROG's denoiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.errors import Checked, InputError, limited, require
from leakgauge.models.weights import load_weights, read_model
from leakgauge.tensors import Tensors

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
    call: here the value is exact, so that the network is a function of its weights alone. The singular vectors
    are held fixed in the derivative, which is then exact too: ∂σ/∂W = u vᵀ. Before a BatchNorm, as in CI-Net, it
    changes nothing but BatchNorm's ε: both undo the weight's scale.
    """
    matrix = weight.flatten(1)
    fixed = matrix.detach()
    left = torch.linalg.eigh(fixed @ fixed.T)[1][:, -1]
    right = F.normalize(fixed.T @ left, dim=0)
    largest: Tensor = left @ (matrix @ right)
    return weight / largest


def published_width(examples: int, size: int) -> int:
    """C by CI-Net's published code: 32, doubled while P(G at 32 px) ≤ 4 · examples · size².

    32 for a batch of 16 at 32 px, 64 for 64, 128 for 128 and 256, 512 for 24 pictures of 256 px.
    """
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
    statistics of the pictures being made. 140 227 parameters at 32 px and C = 32; 427 907, 1 445 635, 5 250 563
    and 19 938 307 at each doubling.

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

    def enlarge(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c s t"]:
        """Doubles the side of feature maps: each value four times, the interpolation of CI-Net's code."""
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    def __call__(self, weights: Tensors, code: Float[Tensor, "n *code"]) -> Float[Tensor, "n c s s"]:
        x = torch.einsum("nk,kchw->nchw", code, weights["core"]) + weights["core.bias"][:, None, None]
        x, stage = normed(x, weights, "core"), 0
        while f"{stage}.0" in weights:
            x = self.enlarge(x) if stage else x
            for name in (f"{stage}.0", f"{stage}.1"):
                x = F.conv2d(x, spectral(weights[name]), weights[f"{name}.bias"], padding=1)
                x = normed(x, weights, name)
            stage += 1
        return F.conv2d(x, weights["picture"], weights["picture.bias"]).tanh()


def parameter_count(width: int) -> int:
    """P(G) of `CINetGenerator` for colour pictures of 32 px."""
    made = CINetGenerator(width=width).weights(1, 3, 32, torch.Generator())
    return sum(tensor.numel() for tensor in made.values())


def add_convolution(
    found: Tensors, name: str, before: int, after: int, kernel: int, generator: torch.Generator
) -> None:
    found[name] = _uniform((after, before, kernel, kernel), before * kernel**2, generator)
    found[f"{name}.bias"] = _uniform((after,), before * kernel**2, generator)


def add_norm(found: Tensors, name: str, width: int) -> None:
    found[f"{name}.scale"] = torch.ones(width, dtype=torch.float64)
    found[f"{name}.shift"] = torch.zeros(width, dtype=torch.float64)


MULTIPLE = 8  # three halvings: other sizes are padded to a multiple of this and cut back


class DecoderNorm(nn.Module):
    """BatchNorm whose scale and shift depend on the label when there are `classes`; else plain BatchNorm.

    The gain and shift of all classes start at 1 and 0.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm2d(channels, affine=not classes)
        if classes:
            self.scale = nn.Parameter(torch.ones(classes, channels))
            self.shift = nn.Parameter(torch.zeros(classes, channels))

    def forward(self, x: Float[Tensor, "n c h w"], labels: Int[Tensor, " n"] | None) -> Float[Tensor, "n c h w"]:
        normal: Tensor = self.norm(x)
        if not self.classes or labels is None:
            return normal
        return normal * self.scale[labels, :, None, None] + self.shift[labels, :, None, None]


class DenoisingUNet(nn.Module):
    """Pictures in [0, 1] → pictures in [0, 1] of the same size.

    Reflection of 2 px, 5×5 convolution to `width` channels; three 3×3 convolutions of stride 2 to 2, 4 and 8 times
    that, each with InstanceNorm and ReLU; then three times a transposed 4×4 convolution of stride 2, norm, ReLU, the
    skip connection, and a 3×3 convolution, norm, ReLU. The last skip connection is the input picture itself. A 3×3
    convolution to three channels, and (tanh + 1)/2.

    Source: ROG, section 4 and its published code, where the width is 64. Differs:

    * the published code computes the label-conditional normalisation of the decoder and then discards it, so that its
      "conditional" network does not see the label. Here, with `classes`, it is used.
    * The decoder's norm is BatchNorm, whose statistics are fixed after training. InstanceNorm there would give
      every channel of a flat picture unit variance, and texture with it.
    * The paper speaks of four halvings; its code, and this, makes three.
    * Sizes that are no multiple of 8 are padded by repeating the edge, and cut back.

    Attributes:
        width: channels at full size. 5 822 339 weights at 64, 1 458 115 at 32, 821 139 at 24.
        classes: number of labels of the conditional twin; 0 for the label-free network.
    """

    def __init__(self, *, width: int = 32, classes: int = 0) -> None:
        super().__init__()
        require(width > 0, "width", f"is {width}", "give a positive number of channels")
        require(classes >= 0, "classes", f"is {classes}", "give the number of labels, 0 for none")
        self.width, self.classes = width, classes
        self.first = nn.Conv2d(3, width, 5)
        self.down = nn.ModuleList(
            nn.Conv2d(width * 2**k, width * 2 ** (k + 1), 3, stride=2, padding=1, bias=False) for k in range(3)
        )
        self.up, self.up_norm, self.mix, self.mix_norm = (nn.ModuleList() for _ in range(4))
        for k in (2, 1, 0):
            after = width * 2**k
            self.up.append(nn.ConvTranspose2d(2 * after, after, 4, stride=2, padding=1, bias=False))
            self.up_norm.append(DecoderNorm(after, classes))
            self.mix.append(nn.Conv2d(after + (after if k else 3), after, 3, padding=1, bias=False))
            self.mix_norm.append(DecoderNorm(after, classes))
        self.picture = nn.Conv2d(width, 3, 3, padding=1)

    def forward(
        self, images: Float[Tensor, "n 3 h w"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n 3 h w"]:
        require(
            (labels is not None) == bool(self.classes),
            "labels",
            f"{'are missing' if labels is None else 'are given'} and the denoiser has {self.classes} classes",
            "give labels to a conditional denoiser, and to no other",
        )
        height, width = images.shape[-2:]
        whole = F.pad(images, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")
        x = self.first(F.pad(2 * whole - 1, (2,) * 4, mode="reflect")).relu()
        skips = [whole]
        for k, layer in enumerate(self.down):
            # Over each picture's own channels: InstanceNorm, as a GroupNorm, which is faster in this memory layout.
            x = layer(x)
            x = F.group_norm(x, x.shape[1]).relu()
            if k < 2:
                skips.append(x)
        for up, up_norm, mix, mix_norm in zip(self.up, self.up_norm, self.mix, self.mix_norm, strict=True):
            x = up_norm(up(x), labels).relu()
            x = mix_norm(mix(torch.cat([x, skips.pop()], 1)), labels).relu()
        made: Tensor = (self.picture(x).float().tanh() + 1) / 2
        return made[..., :height, :width]


def read_denoiser(path: Path) -> DenoisingUNet:
    """The network of a weights file, in eval mode and float32; width and classes are those of the tensors. Raises
    `InputError`: the file cannot be read, or is no denoiser.
    """
    state = read_model(path, "denoiser")
    first, scale = state.get("first.weight"), state.get("up_norm.0.scale")
    if first is None or first.ndim != 4:
        raise InputError("denoiser", f"{path.name} holds no denoiser", "give one of the packaged files")
    network = DenoisingUNet(width=len(first), classes=0 if scale is None else len(scale))
    load_weights(network, path, "denoiser")
    return network.eval()
