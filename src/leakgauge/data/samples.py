"""Photos that ship with scikit-image."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from leakgauge.data.lent import Lent
from leakgauge.data.pictures import opened, pixels
from leakgauge.data.source import Share, share
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA
from leakgauge.task import Batch

PHOTOS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "retina.jpg",
    "ihc.png",
    "hubble_deep_field.jpg",
    "motorcycle_left.png",
)
"""Present in every scikit-image wheel; scikit-image's other pictures would be downloaded."""

RESERVE = (
    "camera.png",
    "brick.png",
    "grass.png",
    "coins.png",
    "cell.png",
    "moon.png",
    "gravel.png",
    "clock_motion.png",
)
"""Grey pictures of the same wheel, tinted at random; used where a batch takes the colour photos itself."""


@lru_cache(maxsize=len(PHOTOS) + len(RESERVE))
def _photo(path: Path) -> Image.Image:
    """Decoded once a process, 15 MB in all: every trial compares with crops of them."""
    with opened(path, path.name) as photo:
        return photo.copy()


@DATA.register("samples")
@dataclass(frozen=True, kw_only=True)
class Samples:
    """Eight colour photos shipped with scikit-image, centre-cropped to squares; the label is the photo's number.

    Read from the package's own folder: scikit-image's loaders need pooch and may reach for the network.
    """

    size: int = 32
    normalise: bool = True
    name = "samples"
    low, high = 0.0, 1.0
    classes = len(PHOTOS)

    def __post_init__(self) -> None:
        require(self.size > 0, "size", f"is {self.size}", "give the side of the square in pixels")

    def __len__(self) -> int:
        return len(PHOTOS)

    @property
    def shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.arange(len(PHOTOS))

    @cached_property
    def _folder(self) -> Path:
        found = importlib.util.find_spec("skimage")
        if found is None or found.origin is None:
            raise InputError(
                "data.source", "samples come with scikit-image, which is missing", "pip install scikit-image"
            )
        return Path(found.origin).parent / "data"

    @property
    def files(self) -> list[Path]:
        """The photos, and those that are only compared with."""
        return [self._folder / name for name in (*PHOTOS, *RESERVE)]

    def read(self, indices: Sequence[int]) -> Batch:
        photos = [pixels(_photo(self._folder / PHOTOS[i]), channels=3, size=self.size) for i in indices]
        inputs = torch.stack(photos) if photos else torch.empty(0, *self.shape)
        return Batch(inputs, self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [PHOTOS[i] for i in indices]

    def others(self, exclude: frozenset[int], part: Share, size: int, generator: torch.Generator) -> Lent:
        """Random crops of the other photos, at full resolution before they are resized: square side ¼ to ¾ of
        the photo's shorter side, half of them mirrored. The gallery and the public part use different photos;
        a part that has no colour photo left (a batch of seven or eight) cuts up half of the grey `RESERVE`,
        tinted at random."""
        lent = share(len(PHOTOS), exclude, part)
        alone = len(exclude) == len(PHOTOS) - 1 and part is Share.PUBLIC
        files = [PHOTOS[i] for i in lent] if lent and not alone else list(RESERVE[part.value :: 2])

        def crops() -> Iterator[Tensor]:
            for k, file in enumerate(files):
                photo = _photo(self._folder / file)
                yield from (self._crop(photo, generator) for _ in range(k, size, len(files)))

        made = Lent.of(crops(), size, self.shape, self.low, self.high)
        order = [i for k in range(len(files)) for i in range(k, size, len(files))]
        return made.reordered(sorted(range(size), key=order.__getitem__))

    def _crop(self, photo: Image.Image, generator: torch.Generator) -> Float[Tensor, "3 side side"]:
        u = torch.rand(7, generator=generator)
        side = max(1, int(min(photo.size) * (0.25 + 0.5 * float(u[0]))))
        left, top = int(float(u[1]) * (photo.width - side)), int(float(u[2]) * (photo.height - side))
        cut = pixels(photo.crop((left, top, left + side, top + side)), channels=3, size=self.size)
        cut = cut.flip(-1) if u[3] < 0.5 else cut
        return cut * (0.5 + 0.5 * u[4:].view(3, 1, 1)) if photo.mode == "L" else cut
