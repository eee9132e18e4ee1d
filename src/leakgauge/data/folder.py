"""Pictures in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from leakgauge.data.pictures import BROKEN, PictureSource, channels_of, opened, pixels
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA

LOOKED = 8
"""Pictures of a folder whose mode says whether it is grey."""


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

    size: int | None = 32
    classes: int = 0
    bits: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.bits <= 32, "bits", f"is {self.bits}", "give the depth of deep grey pictures, e.g. 12")
        require(self.classes >= 0, "classes", f"is {self.classes}", "give the number of labels, or leave it out")
        counted = max(FEWEST_CLASSES, 1 + max(label for _, label in self._files))
        if 0 < self.classes < counted:
            raise InputError("classes", f"is {self.classes} but the folder has {counted} classes", "leave it out")
        object.__setattr__(self, "classes", self.classes or counted)

    @cached_property
    def depth(self) -> int:
        """Grey where the first `LOOKED` pictures that can be read all are."""
        found = set()
        for path in () if self.channels else self.files[:LOOKED]:
            with suppress(*BROKEN), Image.open(path) as image:
                found.add(channels_of(image))
        return self.channels or (1 if found == {1} else 3)

    @cached_property
    def _files(self) -> tuple[tuple[Path, int], ...]:
        root = Path(self.path)
        require(root.is_dir(), "data.source", f"no folder '{self.path}'", "give the path of a folder of images")
        known = self.suffixes

        def pictures(folder: Path) -> list[Path]:
            files = (p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith("."))
            return [p for p in files if p.suffix.lower() in known]

        classes = [p for p in sorted(root.iterdir()) if p.is_dir() and not p.name.startswith(".")]
        columns = [pictures(folder) for folder in classes] if classes else [pictures(root)]
        turns = zip_longest(*columns)
        files = tuple((path, label) for turn in turns for label, path in enumerate(turn) if path is not None)
        none = f"folder '{self.path}' holds no images"
        require(bool(files), "data.source", none, "put images in it, or in one sub-folder a class")
        return files

    @property
    def suffixes(self) -> frozenset[str]:
        """Which files are read."""
        return frozenset(Image.registered_extensions())

    @property
    def files(self) -> list[Path]:
        """For all pictures."""
        return [path for path, _ in self._files]

    @property
    def name(self) -> str:
        return f"folder:{self.path}"

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.tensor([label for _, label in self._files])

    def picture(self, path: Path, name: str) -> Float[Tensor, "c h w"]:
        """One file's picture in [0, 1].

        Raises:
            InputError: it cannot be decoded; names the file.
        """
        with opened(path, name) as image:
            return pixels(image, channels=self.depth, size=self.size, bits=self.bits)

    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        return [self.picture(self._files[i][0], name) for i, name in zip(indices, self.names(indices), strict=True)]

    def names(self, indices: Sequence[int]) -> list[str]:
        root = Path(self.path)
        return [self._files[i][0].relative_to(root).as_posix() for i in indices]
