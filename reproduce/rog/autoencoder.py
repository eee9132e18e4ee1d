"""The autoencoder of ROG's ablation, the canvas of its codes, and its training on pictures like the client's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.attacks.matching.canvases import Uniform
from leakgauge.attacks.matching.parts import Bounds, Canvas, Start
from leakgauge.errors import require
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


def frozen(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).eval().requires_grad_(False)


def called(module: nn.Module, given: Tensor) -> Tensor:
    """In the dtype and on the device of what is given, which need not be the module's."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state = {k: v.to(given) if v.is_floating_point() else v.to(given.device) for k, v in state.items()}
    return cast(Tensor, functional_call(module, state, (given,)))


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoder(Canvas):
    """Codes of shape `code`, one an example, through `module`, whose weights do not move (`Pretrained` moves them too).

    Source: ROG's ablation: the decoder of an autoencoder that was trained on such pictures, in place of the bicubic
    enlargement. Runs in eval mode.

    Attributes:
        module: from codes ``(n, *code)`` to pictures of the data's shape, whose (0, 1) is the data's range.
        code: shape of one code.
        encoder: codes start at what it makes of the first guess, in the decoder's range (ROG, in its paper); without
            one at N(0, 1).
        first: that guess.
    """

    module: nn.Module
    code: tuple[int, ...]
    encoder: nn.Module | None = None
    first: Start = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", frozen(self.module))
        if self.encoder is not None:
            object.__setattr__(self, "encoder", frozen(self.encoder))

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        if self.encoder is None:
            return {"codes": torch.randn((examples, *self.code), generator=generator, dtype=torch.float64)}
        raw = data.denormalise(self.first(examples, data, generator))
        codes = called(self.encoder, (raw - data.low) / data.range).detach()
        shapes = f"codes of shape {tuple(codes.shape[1:])} for a decoder of {self.code}"
        require(codes.shape[1:] == self.code, "encoder", f"makes {shapes}", "give its own encoder")
        return {"codes": codes}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        pictures = called(self.module, variables["codes"])
        made = tuple(pictures.shape[1:])
        require(
            made == data.shape, "module", f"makes {made}, the data have {data.shape}", "give a decoder of that size"
        )
        return data.normalise(data.low + data.range * pictures)

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        return {}


def fit_autoencoder(
    module: Autoencoder,
    pictures: Float[Tensor, "m c h w"],
    generator: torch.Generator,
    *,
    steps: int = 2000,
    batch_size: int = 64,
    lr: float = 2e-3,
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Trains `module` in place to give back pictures in [0, 1], and leaves it in eval mode.

    Mean squared error, Adam on a half cosine to zero, pictures drawn with replacement and mirrored at random.

    Returns:
        The mean squared error of each step, before it.

    Raises:
        InputError: no pictures, or training diverged.
    """
    require(len(pictures) > 0, "pictures", "are none", "give some of the kind that the client has")
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    module.train()
    history = []
    for step in range(steps):
        some = pictures[torch.randint(len(pictures), (batch_size,), generator=generator)]
        mirrored = torch.rand(batch_size, generator=generator) < 0.5
        some = torch.where(mirrored.view(-1, 1, 1, 1), some.flip(-1), some)
        optimiser.zero_grad(set_to_none=True)
        loss = F.mse_loss(module(some), some)
        loss.backward()
        optimiser.step()
        schedule.step()
        history.append(float(loss.detach()))
        require(history[-1] == history[-1], "lr", f"training diverged in step {step}", "lower the learning rate")
        if on_step is not None:
            on_step(step, history[-1])
    module.eval()
    return history
