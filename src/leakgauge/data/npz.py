"""Arrays: in memory, and in NumPy archives."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA
from leakgauge.task import Batch


@dataclass(frozen=True, eq=False, kw_only=True)
class InMemory:
    """A source of a user's own tensors.

    Attributes:
        inputs: raw values in [low, high].
        labels: classes of all examples, of any whole type.
        count: of classes; by default one more than the largest label, and at least two.
        low, high: the raw data's range.
        normalise: whether pictures are normalised before the model sees them (see `leakgauge.data.spec`).
        name: for reports.
    """

    inputs: Float[Tensor, "n *shape"]
    labels: Int[Tensor, " n"]
    count: int | None = None
    low: float = 0.0
    high: float = 1.0
    normalise: bool = False
    name: str = "memory"

    def __post_init__(self) -> None:
        require(len(self.inputs) == len(self.labels) > 0, "labels", f"are {len(self.labels)}", "give one an example")
        whole = self.labels.ndim == 1 and not (self.labels.is_floating_point() or self.labels.is_complex())
        odd = f"are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
        require(whole, "labels", odd, "give one whole number an example: its class, from 0")
        object.__setattr__(self, "labels", self.labels.long())
        finite = bool(torch.isfinite(self.inputs).all())
        require(finite, "inputs", "hold NaN or infinity", "leave such examples out")
        inside = bool((self.inputs >= self.low).all()) and bool((self.inputs <= self.high).all())
        require(inside, "inputs", f"leave [{self.low:g}, {self.high:g}]", "give low and high of the raw data")
        known = bool((self.labels >= 0).all()) and bool((self.labels < self.classes).all())
        require(known, "labels", f"are not all in [0, {self.classes})", "give count, and labels from 0")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return max(2, int(self.labels.max()) + 1) if self.count is None else self.count

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(list(indices), dtype=torch.long)
        return Batch(self.inputs[chosen].float(), self.labels[chosen])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"example {index}" for index in indices]


MOST = 16 << 30
"""Bytes that an archive may unpack to."""
SAVE = "write it with numpy.savez(x=…, y=…), plain arrays only"
UNREADABLE = (
    OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, KeyError, MemoryError, NotImplementedError
)  # fmt: skip
"""What NumPy raises for files that are no archives, or not whole ones."""


Array = npt.NDArray[Any]


@DATA.register("npz")
@dataclass(frozen=True, kw_only=True)
class NPZ:
    """Arrays `x` (or `images`) and `y` (or `labels`) of a NumPy archive; pictures or not.

    Bytes are pictures, [n, h, w, c] or [n, h, w]; 0 to 255 becomes low to high. Floats are [n, c, h, w] (or
    [n, h, w, c] with one or three channels) or [n, features…], e.g. an ECG, and must lie in [low, high] as they
    are. All is checked when the archive is opened. Object arrays are refused: reading them would run code from
    the file.

    Attributes:
        path: the archive.
        size: side that pictures are resized to (antialiased, not cropped); `None` keeps them.
        low, high: the range of float data.
        classes: number of labels; 0 counts them as the largest + 1 (at least two).
    """

    path: str
    size: int | None = None
    low: float = 0.0
    high: float = 1.0
    classes: int = 0
    normalise: bool = True

    def __post_init__(self) -> None:
        require(self.high > self.low, "high", f"is {self.high}, low is {self.low}", "give the data's range")
        require(self.size is None or self.size > 0, "size", f"is {self.size}", "give the side in pixels")
        counted = max(FEWEST_CLASSES, 1 + int(self._arrays[1].max()))
        if self.classes and self.classes < counted:
            raise InputError("classes", f"is {self.classes} but the largest label is {counted - 1}", "leave it out")
        object.__setattr__(self, "classes", self.classes or counted)

    @property
    def files(self) -> list[Path]:
        """The archive."""
        return [Path(self.path)]

    @property
    def name(self) -> str:
        return f"npz:{self.path}"

    @property
    def shape(self) -> tuple[int, ...]:
        kept = self._arrays[0].shape[1:]
        return tuple(kept) if self.size is None else (kept[0], self.size, self.size)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.from_numpy(self._arrays[1])

    def __len__(self) -> int:
        return len(self._arrays[0])

    def read(self, indices: Sequence[int]) -> Batch:
        raw = self._arrays[0][list(indices)]
        scale = 255.0 if raw.dtype == np.uint8 else 1.0
        inputs = torch.from_numpy(raw.astype(np.float32) / np.float32(scale))
        if raw.dtype == np.uint8:
            inputs = self.low + (self.high - self.low) * inputs
        if self.size is not None and len(inputs):
            inputs = F.interpolate(inputs, (self.size, self.size), mode="bicubic", antialias=True, align_corners=False)
        # Rounding to float32 and the bicubic filter both step over the edges of the range.
        return Batch(inputs.clamp(self.low, self.high), self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"{self.name}[{i}]" for i in indices]

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        x, y = read_archive(self.path, (("x", "images"), ("y", "labels")))
        return self._examples(x), classes_of(x, y)

    def _examples(self, x: Array) -> Array:
        require(x.ndim >= 2 and x.size > 0, "x", f"has shape {x.shape}", "give [n, …] with n > 0")
        if x.dtype == np.uint8:
            x = x[:, None] if x.ndim == 3 else x
            require(x.ndim == 4, "x", f"holds bytes of shape {x.shape}", "bytes are pictures: give [n, h, w, c]")
            x = x.transpose(0, 3, 1, 2) if x.shape[-1] in (1, 3) else x
            require(x.shape[1] in (1, 3), "x", f"has {x.shape[1]} channels", "give one or three")
        else:
            require(x.dtype.kind == "f", "x", f"holds {x.dtype}", "store uint8 pictures, or floats")
            require(bool(np.isfinite(x).all()), "x", "holds NaN or infinity", "remove or correct those examples")
            inside = float(x.min()) >= self.low and float(x.max()) <= self.high
            span = f"[{float(x.min()):g}, {float(x.max()):g}]"
            require(
                inside,
                "x",
                f"spans {span}, outside [{self.low:g}, {self.high:g}]",
                "set data.low and data.high, or scale it",
            )
            if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[-1] in (1, 3):
                x = x.transpose(0, 3, 1, 2)
        is_image = x.ndim == 4 and x.shape[1] in (1, 3)
        require(
            self.size is None or is_image,
            "size",
            f"is given, but examples of shape {x.shape[1:]} are no pictures",
            "leave it out",
        )
        return np.ascontiguousarray(x)


def read_archive(path: Path | str, arrays: Sequence[tuple[str, ...]], hint: str = SAVE) -> list[Array]:
    """The arrays of these names in an archive, the first of each that is there.

    Raises:
        InputError: it is none, is damaged, unpacks to more than `MOST`, holds more than numbers, or lacks one.
    """
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            whole = isinstance(archive, np.lib.npyio.NpzFile)
            require(whole, "data.source", f"'{path}' is one array, not an archive", hint)
            size = sum(entry.file_size for entry in zipfile.ZipFile(file).infolist())
            problem = f"'{path}' unpacks to {size / 2**30:.0f} GiB"
            require(size <= MOST, "data.source", problem, f"give at most {MOST >> 30} GiB at a time")
            with archive:
                return [_one_of(archive, names) for names in arrays]
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError("data.source", f"cannot read '{path}' ({error})", hint) from error


def _one_of(archive: Any, names: tuple[str, ...]) -> Array:
    name = next((name for name in names if name in archive.files), None)
    problem = f"the archive has no array '{names[0]}', only {sorted(archive.files)}"
    require(name is not None, "data.source", problem, f"name one '{names[0]}'")
    return np.asarray(archive[name])


def classes_of(x: Array, y: Array) -> Array:
    """The labels as whole numbers. Raises `InputError` where they are none, or not one an example."""
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    require(y.ndim == 1, "y", f"has shape {y.shape}", "give one label an example")
    require(len(y) == len(x), "y", f"has {len(y)} labels for {len(x)} examples", "give one label an example")
    whole = y.dtype.kind in "iu" or (y.dtype.kind == "f" and bool((np.isfinite(y) & (y == np.floor(y))).all()))
    whole = whole and int(y.min(initial=0)) >= 0 and int(y.max(initial=0)) < 2**31
    require(whole, "y", "holds labels that are not 0, 1, 2, …", "number the classes from zero")
    return y.astype(np.int64)
