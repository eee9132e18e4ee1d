"""Encoded pictures to tensors in [0, 1]."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

from leakgauge.errors import InputError

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


def pixels(image: Image.Image, *, channels: int, size: int | None = None) -> Float[Tensor, "c h w"]:
    """Float32 in [0, 1], in colour (`channels` 3) or grey (1).

    With `size`, centre-cropped to a square and resized with an antialiasing (Lanczos) filter. Sixteen-bit
    grey is divided by 65535; other modes go through Pillow's own conversion, which drops transparency.
    """
    if size is not None:
        image = square(image)
    if image.mode.startswith("I"):
        # Pillow's conversion to eight bits would cut such pictures off at 255.
        grey = Image.fromarray(np.asarray(image, dtype=np.float32) / 65535)
        plane = np.asarray(grey if size is None else grey.resize((size, size), Image.Resampling.LANCZOS))
        deep = torch.from_numpy(plane.copy()).clamp(0, 1)[None]
        return deep.expand(channels, -1, -1).clone()
    image = image.convert("RGB" if channels == 3 else "L")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    values = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(values.reshape(image.height, image.width, channels)).permute(2, 0, 1).contiguous()


def channels_of(image: Image.Image) -> int:
    """One for a grey picture, three for any other."""
    return 1 if image.mode in ("1", "L", "LA") or image.mode.startswith("I") else 3


def stack(images: list[Tensor], names: list[str]) -> Float[Tensor, "k c h w"]:
    """One tensor of pictures that must agree in shape.

    Raises:
        InputError: they differ; names the first that does.
    """
    for image, name in zip(images, names, strict=True):
        if image.shape != images[0].shape:
            raise InputError(
                name,
                f"has shape {tuple(image.shape)}, others have {tuple(images[0].shape)}",
                "set data.size to resize all",
            )
    return torch.stack(images)
