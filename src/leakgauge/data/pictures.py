"""Pictures: decoding, and what sources of pictures that are decoded one by one have in common."""

from __future__ import annotations

import io
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image, ImageOps
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.task import Batch

BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises for files that are no pictures, or not whole ones."""


@contextmanager
def opened(encoded: bytes | Path, name: str) -> Iterator[Image.Image]:
    """The fully decoded picture, turned upright as its EXIF tag says.

    Raises:
        InputError: it cannot be decoded; names the file.
    """
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
    except BROKEN as error:
        raise InputError(name, f"is not a readable image ({error})", "replace or remove the file") from error
    if upright.mode == "F":
        raise InputError(name, "holds floats of unknown range", "store such data as an npz archive with low and high")
    yield upright


def square(image: Image.Image) -> Image.Image:
    """The largest centred square."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def unit_plane(image: Image.Image, *, channels: int, size: int | None = None) -> Float[Tensor, "c h w"]:
    """One plane of floats in [0, 1], in as many channels; with `size` cropped and resized as `pixels` does."""
    whole = image if size is None else square(image).resize((size, size), Image.Resampling.LANCZOS)
    deep = torch.from_numpy(np.asarray(whole, dtype=np.float32).copy()).clamp(0, 1)[None]
    return deep.expand(channels, -1, -1).clone()


def pixels(image: Image.Image, *, channels: int, size: int | None = None, bits: int = 16) -> Float[Tensor, "c h w"]:
    """Float32 in [0, 1], in colour (`channels` 3) or grey (1).

    With `size`, centre-cropped to a square and resized with an antialiasing (Lanczos) filter. Deep grey is divided by
    the largest value of so many `bits`; other modes go through Pillow's own conversion, which drops transparency.

    Raises:
        InputError: a value needs more bits.
    """
    if image.mode.startswith("I"):
        # Pillow's conversion to eight bits would cut such pictures off at 255.
        plane, most = np.asarray(image, dtype=np.float32), 2**bits - 1
        problem = f"is {bits}, and a picture holds {plane.max():.0f}"
        require(float(plane.max()) <= most, "bits", problem, "set data.bits")
        return unit_plane(Image.fromarray(plane / np.float32(most)), channels=channels, size=size)
    if size is not None:
        image = square(image)
    image = image.convert("RGB" if channels == 3 else "L")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    values = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(values.reshape(image.height, image.width, channels)).permute(2, 0, 1).contiguous()


def channels_of(image: Image.Image) -> int:
    """One for a grey picture, three for any other."""
    return 1 if image.mode in ("1", "L", "LA") or image.mode.startswith("I") else 3


@dataclass(frozen=True, kw_only=True)
class PictureSource(ABC):
    """Labelled pictures that are decoded when they are read, with values in [0, 1].

    Attributes:
        path: where they lie.
        size: side of the square that pictures are centre-cropped and resized to; `None` keeps them.
        channels: 3 (colour) or 1 (grey); other modes are converted. 0: grey where the first are.
    """

    path: str
    size: int | None = None
    channels: int = 0
    normalise: bool = True
    low = 0.0
    high = 1.0

    def __post_init__(self) -> None:
        require(self.channels in (0, 1, 3), "channels", f"is {self.channels}", "give 1 (grey) or 3 (colour)")
        require(self.size is None or self.size > 0, "size", f"is {self.size}", "give the side of the square in pixels")

    @property
    @abstractmethod
    def labels(self) -> Int[Tensor, " n"]:
        """For all pictures."""

    @abstractmethod
    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        """Some of them, in this order. Raises `InputError` that names one which cannot be decoded."""

    @abstractmethod
    def names(self, indices: Sequence[int]) -> list[str]:
        """What to call them in reports."""

    @cached_property
    @abstractmethod
    def depth(self) -> int:
        """Channels of all pictures: `channels`, or those of the first."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        if self.size is not None:
            return (self.depth, self.size, self.size)
        return tuple(self.read([0]).inputs.shape[1:])

    def read(self, indices: Sequence[int]) -> Batch:
        images = self.pictures(indices)
        for image, index in zip(images, indices, strict=True):
            problem = f"has shape {tuple(image.shape)}, others have {tuple(images[0].shape)}"
            same = image.shape == images[0].shape
            require(same, "" if same else self.names([index])[0], problem, "set data.size to resize all")
        inputs = torch.stack(images) if images else torch.empty(0, *self.shape)
        return Batch(inputs, self.labels[list(indices)])
