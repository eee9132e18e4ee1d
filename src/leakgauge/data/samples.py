"""Data that ship with Python packages: photos and an electrocardiogram."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from leakgauge.data.folder import opened, pixels
from leakgauge.data.lent import Lent
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


QUARTERS = 4
BEAT = 0.6
"""A sample above this share of the recording's range belongs to an R peak; there are three."""


@DATA.register("ecg", needs="PyWavelets")
@dataclass(frozen=True, kw_only=True)
class ECG:
    """Overlapping windows of the 1 024 samples that PyWavelets ships (one lead, three beats), shape (1, window).

    The recording is scaled to [0, 1] as a whole. The label is 0 where no R peak lies in the window, else 1 to 4:
    the quarter of the window that its highest sample is in.

    Attributes:
        window: samples in one example, a multiple of four; a beat is about 330 apart from the next.
        stride: samples between the starts of two windows.
    """

    window: int = 256
    stride: int = 32
    name = "ecg"
    low, high = 0.0, 1.0
    classes = QUARTERS + 1
    normalise = False

    def __post_init__(self) -> None:
        fits = 0 < self.window <= 1024 and self.window % QUARTERS == 0
        require(fits, "window", f"is {self.window}", "give a multiple of 4 up to 1024")
        require(self.stride > 0, "stride", f"is {self.stride}", "give a positive number")

    def __len__(self) -> int:
        return (1024 - self.window) // self.stride + 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.window)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        windows = self._windows
        quarter = 1 + windows.argmax(1) // (self.window // QUARTERS)
        return torch.where(windows.amax(1) > BEAT, quarter, torch.zeros_like(quarter))

    def read(self, indices: Sequence[int]) -> Batch:
        return Batch(self._windows[list(indices)][:, None], self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"ecg[{i * self.stride}:{i * self.stride + self.window}]" for i in indices]

    @cached_property
    def _windows(self) -> Float[Tensor, "n window"]:
        try:
            ecg = importlib.import_module("pywt.data").ecg
        except ModuleNotFoundError as error:
            raise InputError(
                "data.source", "ecg comes with PyWavelets, which is missing", "pip install PyWavelets"
            ) from error
        recording = np.asarray(ecg(), dtype=np.float64)
        scaled = (recording - recording.min()) / (recording.max() - recording.min())
        return torch.from_numpy(scaled.astype(np.float32)).unfold(0, self.window, self.stride).clone()
