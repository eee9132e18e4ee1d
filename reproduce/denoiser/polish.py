"""What is done to the result of a search: a denoiser."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.matching import Polish
from leakgauge.errors import did_you_mean, require
from leakgauge.task import DataSpec
from reproduce.denoiser.network import DenoisingUNet, read_denoiser

LABEL_FREE, CONDITIONAL = "denoiser-cifar10", "denoiser-conditional-cifar10"
WEIGHTS = Path(__file__).parent / "weights"  # of those names

CHUNK = 64  # pictures in one pass through a network


@dataclass(frozen=True, kw_only=True)
class Denoise(Polish):
    """(1 − b) · U(x) + b · C(x, y): a label-free network and, where it is asked for and labels are known, its
    label-conditional twin; b is `blend`, or 0 without `conditional`.

    Source: ROG, section 4; the blend of one half each is its published code's. Differs: there the conditional network's
    label has no effect (see `DenoisingUNet`), and the label-free one works at the small size and is followed by
    USRGAN ×4; here both work on the enlarged picture, and both were trained on CIFAR-10's training pictures.

    Any size. One channel is repeated to three and the answers' mean is taken. Values are clamped to the data's range.
    What comes back is float32.

    Known failures: it was made for pictures that were enlarged fourfold, with some noise. A picture that is sharp
    already comes back less so, so that it hurts attacks that are exact. Noise alone comes back as texture, 15 % nearer
    to any photo in LPIPS (96 pictures, 32 px): read scores against a control.

    Attributes:
        weights, conditional: a name or a path. The conditional network is right only for data with the labels it was
            trained on: CIFAR-10's, in order, for `CONDITIONAL`.
        low, high: of the raw data.

    Raises:
        InputError: weights that cannot be read; examples that are no pictures.
    """

    weights: str = LABEL_FREE
    conditional: str | None = None
    blend: float = 0.5
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.blend <= 1, "blend", f"is {self.blend}", "give a share in [0, 1]")
        require(self.high > self.low, "high", f"is {self.high}", "give more than low")
        free = network(self.weights).classes == 0
        require(free, "weights", f"of {self.weights} need labels", "give them as conditional")
        if self.conditional is not None:
            labelled = network(self.conditional).classes > 0
            require(labelled, "conditional", f"weights of {self.conditional} take no labels", "give them as weights")

    def refuses(self, data: DataSpec) -> str:
        if not data.is_image:
            return f"the denoiser needs pictures of one or three channels, the data have {data.shape}"
        if (data.low, data.high) != (self.low, self.high):
            own, theirs = f"{self.low:g} to {self.high:g}", f"{data.low:g} to {data.high:g}"
            return f"the denoiser is set for values from {own} (low, high), the data have {theirs}"
        classes = 0 if self.conditional is None else network(self.conditional).classes
        if classes not in (0, data.classes):
            return f"the conditional denoiser knows {classes} classes, the data have {data.classes}"
        return ""

    def __call__(
        self, x: Float[Tensor, "n *shape"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n *shape"]:
        """The blend, where there are labels and a conditional network; else the label-free network alone."""
        pictures = x.ndim == 4 and x.shape[1] in (1, 3)
        require(pictures, "denoise", f"cannot take examples of shape {tuple(x.shape[1:])}", "give pictures")
        channels, width = x.shape[1], self.high - self.low
        given = ((x.detach().float() - self.low) / width).clamp(0, 1).expand(-1, 3, -1, -1)
        made = _run(network(self.weights), given, None)
        if labels is not None and self.conditional is not None and self.blend:
            twin = _run(network(self.conditional), given, labels.to(given.device))
            made = (1 - self.blend) * made + self.blend * twin
        made = made if channels == 3 else made.mean(1, keepdim=True)
        return self.low + width * made


@lru_cache(maxsize=4)
def network(weights: str) -> DenoisingUNet:
    """The network of a name or of a path, in eval mode, read once."""
    known = {path.stem: path for path in WEIGHTS.glob("*.safetensors")}
    path = known.get(weights, Path(weights))
    require(path.exists(), "weights", f"no denoiser '{weights}'", did_you_mean(weights, known))
    return read_denoiser(path).requires_grad_(False)


@torch.no_grad()
def _run(
    network: DenoisingUNet, x: Float[Tensor, "n 3 h w"], labels: Int[Tensor, " n"] | None
) -> Float[Tensor, "n 3 h w"]:
    network.to(x.device)
    chunks = torch.arange(len(x)).split(CHUNK)
    return torch.cat([network(x[some], None if labels is None else labels[some]) for some in chunks])
