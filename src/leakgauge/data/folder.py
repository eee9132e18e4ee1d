"""A folder of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from leakgauge.data.image import opened, pixels, stack
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA
from leakgauge.task import Batch


@DATA.register("folder")
@dataclass(frozen=True, kw_only=True)
class Folder:
    """Pictures of a folder; sub-folders, sorted by name, are the classes, and a flat folder is all of class 0.

    Files are sorted by name within a class and taken from the classes in turn, so that a consecutive batch
    is not all of one class. Hidden files and files without a picture's extension are passed over.

    Attributes:
        path: the folder.
        size: side of the square that pictures are centre-cropped and resized to; `None` keeps them.
        channels: 3 (colour) or 1 (grey); other modes are converted.
        classes: number of labels; 0 counts the sub-folders (at least two, see `FEWEST_CLASSES`).
    """

    path: str
    size: int | None = 32
    channels: int = 3
    classes: int = 0
    normalise: bool = True
    low = 0.0
    high = 1.0

    def __post_init__(self) -> None:
        require(self.channels in (1, 3), "channels", f"is {self.channels}", "give 1 (grey) or 3 (colour)")
        require(self.size is None or self.size > 0, "size", f"is {self.size}", "give the side of the square in pixels")
        require(self.classes >= 0, "classes", f"is {self.classes}", "give the number of labels, or leave it out")
        counted = max(FEWEST_CLASSES, 1 + max(label for _, label in self._files))
        if 0 < self.classes < counted:
            raise InputError("classes", f"is {self.classes} but the folder has {counted} classes", "leave it out")
        object.__setattr__(self, "classes", self.classes or counted)

    @cached_property
    def _files(self) -> tuple[tuple[Path, int], ...]:
        root = Path(self.path)
        require(root.is_dir(), "data.source", f"no folder '{self.path}'", "give the path of a folder of images")
        known = Image.registered_extensions()

        def pictures(folder: Path) -> list[Path]:
            files = (p for p in sorted(folder.iterdir()) if p.is_file() and not p.name.startswith("."))
            return [p for p in files if p.suffix.lower() in known]

        classes = [p for p in sorted(root.iterdir()) if p.is_dir() and not p.name.startswith(".")]
        columns = [pictures(folder) for folder in classes] if classes else [pictures(root)]
        turns = zip_longest(*columns)
        files = tuple((path, label) for turn in turns for label, path in enumerate(turn) if path is not None)
        require(
            bool(files),
            "data.source",
            f"folder '{self.path}' holds no images",
            "put images in it, or in one sub-folder a class",
        )
        return files

    @property
    def name(self) -> str:
        return f"folder:{self.path}"

    @cached_property
    def shape(self) -> tuple[int, ...]:
        if self.size is not None:
            return (self.channels, self.size, self.size)
        return tuple(self.read([0]).inputs.shape[1:])

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.tensor([label for _, label in self._files])

    def __len__(self) -> int:
        return len(self._files)

    def read(self, indices: Sequence[int]) -> Batch:
        names = self.names(indices)
        images = []
        for i, name in zip(indices, names, strict=True):
            with opened(self._files[i][0], name) as image:
                images.append(pixels(image, channels=self.channels, size=self.size))
        inputs = stack(images, names) if images else torch.empty(0, *self.shape)
        return Batch(inputs, self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        root = Path(self.path)
        return [self._files[i][0].relative_to(root).as_posix() for i in indices]
