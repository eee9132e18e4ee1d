"""Pictures that are decoded one by one: those of a folder, and photos that ship with scikit-image."""

import importlib.util
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image, ImageOps
from torch import Tensor

from leakgauge.data.source import FEWEST_CLASSES, Share, Source, share
from leakgauge.errors import FOREIGN, Checked, InputError, limited, refusing, require
from leakgauge.registry import DATA
from leakgauge.task import Batch


@contextmanager
def opened(encoded: bytes | Path, name: str) -> Iterator[Image.Image]:
    """The fully decoded picture, turned upright as its EXIF tag says. Raises `InputError`: it cannot be decoded; names
    the file."""
    source = io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded
    with refusing(name, "is not a readable image", "replace or remove the file"), Image.open(source) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
    if upright.mode == "F":
        raise InputError(name, "holds floats of unknown range", "store such data as an npz archive with low and high")
    yield upright


def sized(image: Image.Image, size: int | None) -> Image.Image:
    """Centre-cropped to a square and resized with an antialiasing (Lanczos) filter; as it is without a size."""
    if size is None:
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.LANCZOS)


def unit_plane(image: Image.Image, *, channels: int, size: int | None = None) -> Float[Tensor, "c h w"]:
    """One plane of floats in [0, 1], in as many channels, `sized`."""
    deep = torch.from_numpy(np.asarray(sized(image, size), dtype=np.float32).copy()).clamp(0, 1)[None]
    return deep.expand(channels, -1, -1).clone()


def pixels(image: Image.Image, *, channels: int, size: int | None = None, bits: int = 16) -> Float[Tensor, "c h w"]:
    """Float32 in [0, 1], in colour (`channels` 3) or grey (1).

    `sized`. Deep grey is divided by the largest value of so many `bits`; other modes go through Pillow's own
    conversion, which drops transparency. Raises `InputError`: a value needs more bits."""
    if image.mode.startswith("I"):
        # Pillow's conversion to eight bits would cut such pictures off at 255.
        plane, most = np.asarray(image, dtype=np.float32), 2**bits - 1
        problem = f"is {bits}, and a picture holds {plane.max():.0f}"
        require(float(plane.max()) <= most, "bits", problem, "set data.bits")
        return unit_plane(Image.fromarray(plane / np.float32(most)), channels=channels, size=size)
    image = sized(image.convert("RGB" if channels == 3 else "L"), size)
    values = np.asarray(image, dtype=np.float32) / 255
    return torch.from_numpy(values.reshape(image.height, image.width, channels)).permute(2, 0, 1).contiguous()


def channels_of(image: Image.Image) -> int:
    return 1 if image.mode in ("1", "L", "LA") or image.mode.startswith("I") else 3


SIDE = "give the side of the square in pixels"


@dataclass(frozen=True, kw_only=True)
class PictureSource(Checked, Source, ABC):
    """Labelled pictures that are decoded when they are read, with values in [0, 1]."""

    kind: ClassVar[str]  # of source, as a plan names it
    path: str  # where they lie
    # side of the square that pictures are centre-cropped and resized to; `None` keeps them
    size: int | None = limited(None, lambda side: side > 0, SIDE)
    # 3 (colour) or 1 (grey); other modes are converted. 0: grey where the first are.
    channels: int = limited(0, lambda count: count in (0, 1, 3), "give 1 (grey) or 3 (colour)")
    normalise: bool = True
    low = 0.0
    high = 1.0

    @abstractmethod
    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        """Some of them, in this order. Raises `InputError` that names one which cannot be decoded."""

    @cached_property
    @abstractmethod
    def depth(self) -> int:
        """Channels of all pictures: `channels`, or those of the first."""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.path}"

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.read([0]).inputs.shape[1:]) if self.size is None else (self.depth, self.size, self.size)

    def read(self, indices: Sequence[int]) -> Batch:
        images = self.pictures(indices)
        for image, index in zip(images, indices, strict=True):
            problem = f"has shape {tuple(image.shape)}, others have {tuple(images[0].shape)}"
            same = image.shape == images[0].shape
            require(same, "" if same else self.names([index])[0], problem, "set data.size to resize all")
        inputs = torch.stack(images) if images else torch.empty(0, *self.shape)
        return Batch(inputs, self.labels[list(indices)])


LOOKED = 8  # pictures of a folder whose mode says whether it is grey


@DATA.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder(PictureSource):
    """Pictures of a folder; sub-folders, sorted by name, are the classes, and a flat folder is all of class 0.

    Files are sorted by name within a class and taken from the classes in turn, so that a consecutive batch
    is not all of one class. Hidden files and files without a picture's extension are passed over.

    Attributes:
        path: the folder.
        size, channels: as in `PictureSource`.
        classes: number of labels; 0 counts the sub-folders (at least two, see `FEWEST_CLASSES`).
        bits: of deep grey pictures; files of 16 bits often hold values of 12, whose white is 4095.
    """

    kind = "folder"
    size: int | None = limited(32, lambda side: side > 0, SIDE)
    classes: int = limited(0, lambda count: count >= 0, "give the number of labels, or leave it out")
    bits: int = limited(16, lambda bits: 1 <= bits <= 32, "give the depth of deep grey pictures, e.g. 12")

    def __post_init__(self) -> None:
        super().__post_init__()
        counted = max(FEWEST_CLASSES, 1 + max(label for _, label in self._files))
        fits = self.classes == 0 or self.classes >= counted
        require(fits, "classes", f"is {self.classes} but the folder has {counted} classes", "leave it out")
        object.__setattr__(self, "classes", self.classes or counted)

    @cached_property
    def depth(self) -> int:
        """Grey where the first `LOOKED` pictures that can be read all are."""
        found = set()
        for path in () if self.channels else self.files[:LOOKED]:
            with suppress(*FOREIGN), Image.open(path) as image:
                found.add(channels_of(image))
        return self.channels or (1 if found == {1} else 3)

    @cached_property
    def _files(self) -> tuple[tuple[Path, int], ...]:
        root = Path(self.path)
        require(root.is_dir(), "data.source", f"no folder '{self.path}'", "give the path of a folder of images")

        def shown(folder: Path) -> list[Path]:
            return [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]

        folders = [p for p in shown(root) if p.is_dir()] or [root]
        known = self.suffixes
        turns = zip_longest(*([p for p in shown(f) if p.is_file() and p.suffix.lower() in known] for f in folders))
        files = tuple((path, label) for turn in turns for label, path in enumerate(turn) if path is not None)
        none = f"folder '{self.path}' holds no images"
        require(bool(files), "data.source", none, "put images in it, or in one sub-folder a class")
        return files

    @property
    def suffixes(self) -> frozenset[str]:
        return frozenset(Image.registered_extensions())

    @property
    def files(self) -> list[Path]:
        return [path for path, _ in self._files]

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.tensor([label for _, label in self._files])

    def picture(self, path: Path, name: str) -> Float[Tensor, "c h w"]:
        """One file's picture in [0, 1]."""
        with opened(path, name) as image:
            return pixels(image, channels=self.depth, size=self.size, bits=self.bits)

    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        return [self.picture(self._files[i][0], name) for i, name in zip(indices, self.names(indices), strict=True)]

    def names(self, indices: Sequence[int]) -> list[str]:
        return [self._files[i][0].relative_to(Path(self.path)).as_posix() for i in indices]


PHOTOS = (
    *("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"),
    *("retina.jpg", "ihc.png", "hubble_deep_field.jpg", "motorcycle_left.png"),
)
"""Present in every scikit-image wheel; scikit-image's other pictures would be downloaded."""

RESERVE = (
    *("camera.png", "brick.png", "grass.png", "coins.png"),
    *("cell.png", "moon.png", "gravel.png", "clock_motion.png"),
)
"""Grey pictures of the same wheel, tinted at random; used where a batch takes the colour photos itself."""


@lru_cache(maxsize=len(PHOTOS) + len(RESERVE))
def _photo(path: Path) -> Image.Image:
    """Decoded once a process, 15 MB in all: every trial compares with crops of them."""
    with opened(path, path.name) as photo:
        return photo.copy()


@DATA.register("samples")
@dataclass(frozen=True, kw_only=True)
class Samples(PictureSource):
    """Eight colour photos shipped with scikit-image, centre-cropped to squares; the label is the photo's number.

    Read from the package's own folder: scikit-image's loaders need pooch and may reach for the network.
    """

    path: str = field(default="", init=False, repr=False)
    size: int = limited(32, lambda side: side > 0, SIDE)
    channels: int = field(default=3, init=False, repr=False)
    name = "samples"
    depth, classes = 3, len(PHOTOS)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.arange(len(PHOTOS))

    @cached_property
    def _folder(self) -> Path:
        found = importlib.util.find_spec("skimage")
        if found is None or found.origin is None:
            missing = "samples come with scikit-image, which is missing"
            raise InputError("data.source", missing, "pip install scikit-image")
        return Path(found.origin).parent / "data"

    @property
    def files(self) -> list[Path]:
        """The photos, and those that are only compared with."""
        return [self._folder / name for name in (*PHOTOS, *RESERVE)]

    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        return [pixels(_photo(self._folder / PHOTOS[i]), channels=3, size=self.size) for i in indices]

    def names(self, indices: Sequence[int]) -> list[str]:
        return [PHOTOS[i] for i in indices]

    def others(
        self, exclude: frozenset[int], part: Share, size: int, generator: torch.Generator
    ) -> Float[Tensor, "m 3 side side"]:
        """Random crops of the other photos, at full resolution before they are resized: square side ¼ to ¾ of
        the photo's shorter side, half of them mirrored. The gallery and the public part use different photos;
        a part that has no colour photo left (a batch of seven or eight) cuts up half of the grey `RESERVE`,
        tinted at random."""
        lent = share(len(PHOTOS), exclude, part)
        alone = len(exclude) == len(PHOTOS) - 1 and part is Share.PUBLIC
        files = [PHOTOS[i] for i in lent] if lent and not alone else list(RESERVE[part.value :: 2])
        made = torch.empty(size, *self.shape)
        for k, file in enumerate(files):
            photo = _photo(self._folder / file)
            for i in range(k, size, len(files)):
                made[i] = self._crop(photo, generator)
        return made

    def _crop(self, photo: Image.Image, generator: torch.Generator) -> Float[Tensor, "3 side side"]:
        u = torch.rand(7, generator=generator)
        side = max(1, int(min(photo.size) * (0.25 + 0.5 * float(u[0]))))
        left, top = int(float(u[1]) * (photo.width - side)), int(float(u[2]) * (photo.height - side))
        cut = pixels(photo.crop((left, top, left + side, top + side)), channels=3, size=self.size)
        cut = cut.flip(-1) if u[3] < 0.5 else cut
        return cut * (0.5 + 0.5 * u[4:].view(3, 1, 1)) if photo.mode == "L" else cut
