"""The generators that CI-Net is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.matching.canvases import Generator
from leakgauge.errors import require
from leakgauge.models.networks import CORE, CINetGenerator, add_convolution, add_norm, normed, stages
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@dataclass(frozen=True, kw_only=True)
class AsItIs(Generator):
    """(−1, 1) goes into the target as raw data, as in CI-Net's code, though pictures begin at 0: half of what the
    network can say is no picture. Clamped before scoring only."""

    def raw(self, picture: Float[Tensor, "n *shape"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        return picture


@dataclass(frozen=True, kw_only=True)
class DCGANGenerator:
    """DCGAN's generator: transposed 4×4 convolutions of stride 2, BatchNorm, ReLU; widths halve as pictures grow.

    Source: Radford et al., 2016; CI-Net's Figure 2 uses one untrained. Start: N(0, .02).
    """

    width: int = 64
    code_length: int = 100

    def code(self, examples: int, size: int, generator: torch.Generator) -> Float[Tensor, "n *code"]:
        return torch.randn((examples, self.code_length), generator=generator, dtype=torch.float64)

    def weights(self, examples: int, channels: int, size: int, generator: torch.Generator) -> Tensors:
        steps, before = stages(size), self.code_length
        require(steps > 0, "size", f"is {size}", "give pictures above 4 px")
        found: Tensors = {}
        for step in range(steps + 1):
            after = channels if step == steps else self.width * 2 ** (steps - 1 - step)
            shape = (before, after, 4, 4)
            found[str(step)] = 0.02 * torch.randn(shape, generator=generator, dtype=torch.float64)
            if step < steps:
                add_norm(found, str(step), after)
            before = after
        return found

    def __call__(self, weights: Tensors, code: Float[Tensor, "n *code"]) -> Float[Tensor, "n c s s"]:
        x, step = code[:, :, None, None], 0
        while f"{step}.scale" in weights:
            x = F.conv_transpose2d(x, weights[str(step)], stride=2 if step else 1, padding=1 if step else 0)
            scale, shift = weights[f"{step}.scale"], weights[f"{step}.shift"]
            x = F.batch_norm(x, None, None, scale, shift, training=True).relu()
            step += 1
        return F.conv_transpose2d(x, weights[str(step)], stride=2, padding=1).tanh()


@dataclass(frozen=True, kw_only=True)
class DeepImagePrior:
    """A plain deep image prior: an hourglass from a fixed noise picture of full size, one for all examples.

    Down: 3×3 convolutions of stride 2 to 4 px; up: nearest ×2 and a 3×3 convolution; BatchNorm and leaky ReLU
    after each, 1×1 convolution and tanh at the end. Noise is U(0, .1).

    Source: Ulyanov et al., 2018, without its skip connections.
    """

    width: int = 32
    code_channels: int = 32

    def code(self, examples: int, size: int, generator: torch.Generator) -> Float[Tensor, "n *code"]:
        side = CORE * 2 ** stages(size)
        shape = (examples, self.code_channels, side, side)
        return 0.1 * torch.rand(shape, generator=generator, dtype=torch.float64)

    def weights(self, examples: int, channels: int, size: int, generator: torch.Generator) -> Tensors:
        found: Tensors = {}
        before = self.code_channels
        for way in ("down", "up"):
            for step in range(stages(size)):
                add_convolution(found, f"{way}.{step}", before, self.width, 3, generator)
                add_norm(found, f"{way}.{step}", self.width)
                before = self.width
        add_convolution(found, "picture", before, channels, 1, generator)
        return found

    def __call__(self, weights: Tensors, code: Float[Tensor, "n *code"]) -> Float[Tensor, "n c s s"]:
        x, steps = code, sum(name.startswith("down.") and name.endswith(".bias") for name in weights)
        for step in range(steps):
            x = F.conv2d(x, weights[f"down.{step}"], weights[f"down.{step}.bias"], stride=2, padding=1)
            x = normed(x, weights, f"down.{step}")
        for step in range(steps):
            x = F.conv2d(
                F.interpolate(x, scale_factor=2.0), weights[f"up.{step}"], weights[f"up.{step}.bias"], padding=1
            )
            x = normed(x, weights, f"up.{step}")
        return F.conv2d(x, weights["picture"], weights["picture.bias"]).tanh()


@dataclass(frozen=True, kw_only=True)
class ZeroFilled(CINetGenerator):
    """Each value once, zeros between: no interpolation. With the 3×3 convolution that follows it is a
    transposed convolution of stride 2, of the same number of parameters."""

    def enlarge(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c s t"]:
        wide = torch.stack([x, torch.zeros_like(x)], -1).flatten(-2)
        return torch.stack([wide, torch.zeros_like(wide)], -2).flatten(2, 3)
