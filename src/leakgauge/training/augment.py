"""Augmentation: random changes of pictures while a classifier is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require


@runtime_checkable
class Augmentation(Protocol):
    """Images to images of the same shape; draws from `generator` alone."""

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]: ...


@dataclass(frozen=True)
class NoAugmentation:
    """The images as they are."""

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        del generator
        return images


@dataclass(frozen=True, kw_only=True)
class CropFlip:
    """A crop of the image padded by `padding` pixels of the data's zero, then a horizontal flip of every other image.

    Source: He et al., 2016, section 4.2, as used for the trained networks of Inverting Gradients.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        require(self.padding >= 0, "padding", f"is {self.padding}", "give a number of pixels ≥ 0")

    def __call__(self, images: Float[Tensor, "n c h w"], generator: torch.Generator) -> Float[Tensor, "n c h w"]:
        n, _, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4)
        top, left = torch.randint(2 * self.padding + 1, (2, n), generator=generator)
        flipped = torch.rand(n, generator=generator) < 0.5
        columns = left[:, None] + torch.arange(width)
        columns = torch.where(flipped[:, None], columns.flip(1), columns)
        rows = top[:, None] + torch.arange(height)
        which = torch.arange(n)[:, None, None]
        return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
