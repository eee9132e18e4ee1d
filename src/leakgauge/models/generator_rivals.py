"""Autoencoders and the generators that CI-Net is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.models.generators import CORE, Nearest, add_convolution, add_norm, normed, stages
from leakgauge.tensors import Tensors


class Autoencoder(nn.Module):
    """Pictures in [0, 1] → codes of ``code × (size/2^halvings)²`` → pictures in (0, 1).

    The encoder halves the sides `halvings` times (3×3 convolutions of stride 2, ReLU); the decoder doubles them again
    (nearest, 3×3 convolution, ReLU) and ends in a sigmoid. No normalisation layers, so that pictures do not mix.

    Convolutions start at He's normal initialisation.

    Source: ROG's ablation, whose autoencoder is in neither paper nor code; d_z there is 8 192, 2 048 and 512 at 128 px:
    `code` 32, 8 and 2 with three halvings.

    Attributes:
        code: channels of a code.
        width: channels at full size; doubled at each halving, up to four times.
    """

    def __init__(self, *, channels: int = 3, code: int = 32, width: int = 32, halvings: int = 3) -> None:
        super().__init__()
        for name, value in (("channels", channels), ("code", code), ("width", width), ("halvings", halvings)):
            require(value > 0, name, f"is {value}", "give a positive number")
        self.channels, self.code, self.halvings = channels, code, halvings
        widths = [width * min(2**k, 4) for k in range(halvings + 1)]
        down: list[nn.Module] = [nn.Conv2d(channels, widths[0], 3, padding=1), nn.ReLU()]
        up: list[nn.Module] = [nn.Conv2d(code, widths[-1], 3, padding=1), nn.ReLU()]
        for before, after in pairwise(widths):
            down += [nn.Conv2d(before, after, 3, 2, 1), nn.ReLU()]
        for before, after in pairwise(widths[::-1]):
            up += [nn.Upsample(scale_factor=2), nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(*down, nn.Conv2d(widths[-1], code, 3, padding=1))
        self.decoder = nn.Sequential(*up, nn.Conv2d(widths[0], channels, 3, padding=1), nn.Sigmoid())
        # Torch's default shrinks the signal at every layer, and such a network hardly begins to learn.
        for part in self.modules():
            if isinstance(part, nn.Conv2d) and part.bias is not None:
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                nn.init.zeros_(part.bias)

    def code_shape(self, size: int) -> tuple[int, int, int]:
        """Of one code, for square pictures of `size` pixels.

        Raises:
            InputError: the size is no multiple of 2^halvings.
        """
        factor = 2**self.halvings
        require(size % factor == 0, "size", f"{size} is no multiple of {factor}", "pad the pictures, or halve less")
        return self.code, size // factor, size // factor

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return cast(torch.Tensor, self.decoder(self.encoder(x)))


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
            x = F.conv2d(Nearest()(x), weights[f"up.{step}"], weights[f"up.{step}.bias"], padding=1)
            x = normed(x, weights, f"up.{step}")
        return F.conv2d(x, weights["picture"], weights["picture.bias"]).tanh()
