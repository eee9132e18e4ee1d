"""Networks that make pictures: CI-Net's generator as a pure function of its weights."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import Checked, limited, require
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
    call: here the value and its derivative are exact, so that the network is a function of its weights alone. Before a
    BatchNorm, as in CI-Net, it changes nothing but BatchNorm's ε: both undo the weight's scale.
    """
    matrix = weight.flatten(1)
    largest: Tensor = torch.linalg.eigvalsh(matrix @ matrix.T)[-1].sqrt()
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
