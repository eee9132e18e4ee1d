"""Pictures of formats that take an extra: Parquet files, Hugging Face data sets, and scans in DICOM."""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from leakgauge.data.pictures import Folder, PictureSource, channels_of, opened, pixels, unit_plane
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import installed, limited, refusing, require
from leakgauge.registry import DATA

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "fine_label", "labels")


def _decoding(path: Path | str) -> AbstractContextManager[None]:
    return refusing("data.source", f"cannot read '{path}'", "give a whole Parquet file")


@dataclass(frozen=True, kw_only=True)
class PictureTable(PictureSource):
    """Rows of a picture and an integer label, in two columns."""

    # image_column, label_column: where not `image` or `img`, and `label` or `fine_label`
    image_column: str = ""
    label_column: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self) > 0, "data.source", f"'{self.path}' holds no rows", "give one with examples")
        unlabelled = f"'{self.path}' has unlabelled rows (label −1)"
        require(int(self.labels.min()) >= 0, "data.source", unlabelled, "use a labelled split")

    @abstractmethod
    def images(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        """The decoded pictures of these rows."""

    @property
    @abstractmethod
    def listed(self) -> int:
        """How many classes the data's own description names; 0 for none."""

    @cached_property
    def classes(self) -> int:
        """As the data's own description says, else the largest label + 1; at least two."""
        return max(FEWEST_CLASSES, self.listed, 1 + int(self.labels.max()))

    @cached_property
    def depth(self) -> int:
        return self.channels or channels_of(next(self.images([0])))

    def pictures(self, indices: Sequence[int]) -> list[Float[Tensor, "c h w"]]:
        return [pixels(image, channels=self.depth, size=self.size) for image in self.images(indices)]

    def columns_of(self, present: Sequence[str]) -> tuple[str, str]:
        """Columns of pictures and labels: those named in the plan, else the first usual ones that are present."""
        found = []
        for given, usual in ((self.image_column, IMAGE_COLUMNS), (self.label_column, LABEL_COLUMNS)):
            names = (given,) if given else usual
            found.append(next((name for name in names if name in present), ""))
            problem = f"has no column '{names[0]}', only {sorted(present)}"
            require(bool(found[-1]), "data.source", problem, "set data.image_column and data.label_column")
        return found[0], found[1]


@DATA.register("parquet", needs="leakgauge[parquet]")
@dataclass(frozen=True, kw_only=True)
class Parquet(PictureTable):
    """Pictures of a Parquet file, or of all such files in a folder, in the Hugging Face layout.

    Columns: pictures as a struct of encoded `bytes` and `path`, and integer labels. Opening reads the labels and
    the first picture; others are read by row group and decoded one by one.

    Attributes:
        path: a file, or a folder of ``*.parquet``.
        size, channels, image_column, label_column: as in `PictureTable`.
    """

    kind = "parquet"

    def __post_init__(self) -> None:
        super().__post_init__()
        # A wrong column shows here, not in the middle of an audit.
        self._encoded([0])

    @property
    def files(self) -> list[Path]:
        root = Path(self.path)
        return sorted(root.glob("*.parquet")) if root.is_dir() else [root]

    def __getstate__(self) -> dict[str, object]:
        """What it was made of: open files are opened again where it goes."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @cached_property
    def _files(self) -> tuple[Any, ...]:
        pq = installed("pyarrow.parquet", "data.source", "Parquet files need pyarrow", "parquet")
        there = bool(self.files) and self.files[0].exists()
        require(there, "data.source", f"no Parquet file at '{self.path}'", "give a file, or a folder of them")
        with _decoding(self.path):
            return tuple(pq.ParquetFile(path) for path in self.files)

    @cached_property
    def _columns(self) -> tuple[str, str]:
        with _decoding(self.path):
            return self.columns_of(self._files[0].schema_arrow.names)

    @cached_property
    def _groups(self) -> list[tuple[int, Any, int]]:
        """Each row group: the row behind its last one, its file, and its number there."""
        groups = [(file, number) for file in self._files for number in range(file.num_row_groups)]
        ends = accumulate(file.metadata.row_group(number).num_rows for file, number in groups)
        return [(end, *group) for end, group in zip(ends, groups, strict=True)]

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        label = self._columns[1]
        with _decoding(self.path):
            values = [v for file in self._files for v in file.read(columns=[label]).column(label).to_pylist()]
        whole = all(isinstance(v, int) and abs(v) < 2**31 for v in values)
        require(whole, "data.source", f"column '{label}' holds labels that are not integers", "set data.label_column")
        return torch.tensor(values, dtype=torch.int64)

    @property
    def listed(self) -> int:
        with _decoding(self.path):
            note = (self._files[0].schema_arrow.metadata or {}).get(b"huggingface", b"{}")
            features = json.loads(note).get("info", {}).get("features", {})
            return len(features.get(self._columns[1], {}).get("names") or ())

    def _encoded(self, indices: Sequence[int]) -> list[tuple[bytes, str]]:
        """Bytes and name of each row; a row group is read once a call, and one is held at a time."""
        image, cells, first, end = self._columns[0], [], 0, 0
        found: dict[int, tuple[bytes, str]] = {}
        for i in sorted(set(indices)):
            with _decoding(self.path):
                if i >= end:
                    end, file, number = next(group for group in self._groups if i < group[0])
                    cells = file.read_row_group(number, columns=[image]).column(image)
                    first = end - len(cells)
                cell = cells[i - first].as_py()
            (name,) = self.names([i])
            encoded = isinstance(cell, dict) and bool(cell.get("bytes"))
            require(encoded, name, f"column '{image}' does not hold encoded images", "give a struct of bytes and path")
            found[i] = (cell["bytes"], cell.get("path") or name)
        return [found[i] for i in indices]

    def images(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        for encoded, name in self._encoded(indices):
            with opened(encoded, name) as image:
                yield image

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"{Path(self.path).name}[{i}]" for i in indices]


@DATA.register("hf", needs="leakgauge[hub]")
@dataclass(frozen=True, kw_only=True)
class Hub(PictureTable):
    """Pictures of a Hugging Face data set, by ``datasets.load_dataset``, which may download it.

    Attributes:
        path: the data set's name on the hub, e.g. ``uoft-cs/cifar10``.
        split: which part of it.
        config: which of its configurations; empty for the only one.
        size, channels, image_column, label_column: as in `PictureTable`.
    """

    kind = "hf"
    split: str = "test"
    config: str = ""

    @cached_property
    def _rows(self) -> Any:
        datasets = installed("datasets", "data.source", "hf: needs the datasets package", "hub")
        # The client's own errors (unknown name, configuration or split, no network) are of these two kinds.
        hint = "check its name, split and the network"
        with refusing("data.source", f"cannot load '{self.path}'", hint, OSError, ValueError):
            return datasets.load_dataset(self.path, self.config or None, split=self.split)

    @cached_property
    def _columns(self) -> tuple[str, str]:
        return self.columns_of(list(self._rows.features))

    @cached_property
    def labels(self) -> Int[Tensor, " n"]:
        return torch.tensor([int(v) for v in self._rows[self._columns[1]]])

    @property
    def listed(self) -> int:
        return int(getattr(self._rows.features[self._columns[1]], "num_classes", 0))

    def images(self, indices: Sequence[int]) -> Iterator[Image.Image]:
        for index, name in zip(indices, self.names(indices), strict=True):
            with refusing(name, "is not a readable image", "choose other examples"):
                image = self._rows[index][self._columns[0]]
            kind = type(image).__name__
            require(hasattr(image, "convert"), name, f"is a {kind}, not an image", "set data.image_column")
            yield image

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"{self.name}[{i}]" for i in indices]


LEAST = 1 / 8  # share of the stored bits' range that the first file must use where no window is given
GREY = ("MONOCHROME1", "MONOCHROME2")  # photometric interpretations: the lowest value is white in the first


@DATA.register("dicom", needs="leakgauge[dicom]")
@dataclass(frozen=True, kw_only=True)
class Dicom(Folder):
    """Grey scans of one frame in a folder of ``.dcm`` files; sub-folders are the classes, as in `Folder`.

    Values are the stored ones by rescale slope and intercept, e.g. Hounsfield units, mapped from `window` to [0, 1];
    MONOCHROME1 is turned round, so that 1 is white. Nothing else is applied: no value-of-interest table, no overlay.

    Attributes:
        window: lowest and highest value, outside of which scans are clipped; empty for the whole range of the first
            file's stored bits, which then must hold all files, and of which it must use an eighth.
        size, classes: as in `Folder`.
    """

    kind = "dicom"
    channels: int = 1
    window: tuple[float, ...] = limited(
        (), lambda two: not two or (len(two) == 2 and two[0] < two[1]), "give lowest and highest, e.g. [-1000, 1000]"
    )
    suffixes = frozenset({".dcm", ".dicom"})

    @cached_property
    def span(self) -> tuple[float, float]:
        """The values that become 0 and 1."""
        if self.window:
            return self.window[0], self.window[1]
        name = self.names([0])[0]
        values, (low, high), _ = _scan(self.files[0], name)
        lowest, highest = float(values.min()), float(values.max())
        used = (highest - lowest) / (high - low)
        problem = f"uses {100 * used:.2g} % of [{low:g}, {high:g}]: so dark a picture is harder to attack than yours is"
        require(used >= LEAST, name, problem, f"set data.window as you train, e.g. [{lowest:g}, {highest:g}]")
        return low, high

    def picture(self, path: Path, name: str) -> Float[Tensor, "c h w"]:
        (values, _, is_white_low), (low, high) = _scan(path, name), self.span
        lowest, highest = float(values.min()), float(values.max())
        inside = bool(self.window) or low <= lowest <= highest <= high
        problem = f"spans [{lowest:g}, {highest:g}], and the first file can hold [{low:g}, {high:g}]"
        require(inside, name, problem, "set data.window, e.g. [-1000, 1000]")
        unit = ((values - low) / (high - low)).clip(0, 1)
        unit = 1 - unit if is_white_low else unit
        return unit_plane(Image.fromarray(unit.astype(np.float32)), channels=self.depth, size=self.size)


def _scan(path: Path, name: str) -> tuple[Any, tuple[float, float], bool]:
    """One frame: values after the rescale, the range that the stored bits can hold, and whether the lowest is white.
    Raises `InputError`: pydicom is missing, or the file is no grey scan of one frame."""
    pydicom = installed("pydicom", "data.source", "DICOM needs pydicom", "dicom")
    hint = "give whole DICOM files; compressed ones need pydicom's decoders, e.g. pylibjpeg"
    with refusing(name, "is not a readable scan", hint):  # its decoders raise what they like on damaged files
        found = pydicom.dcmread(path)
        kind, frames = str(found.PhotometricInterpretation), int(found.get("NumberOfFrames", 1))
        slope, intercept = float(found.get("RescaleSlope", 1)), float(found.get("RescaleIntercept", 0))
        bits, signed = int(found.BitsStored), bool(found.PixelRepresentation)
        stored: Any = found.pixel_array
    require(kind in GREY and frames == 1, name, f"is {kind} of {frames} frames", "give grey scans of one frame")
    ends: Sequence[float] = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    low, high = sorted(slope * end + intercept for end in ends)
    return stored.astype(np.float64) * slope + intercept, (low, high), kind == "MONOCHROME1"
