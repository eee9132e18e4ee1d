"""Scans in DICOM files, as their values say. Needs the extra ``dicom``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from leakgauge.data.pictures import Folder, unit_plane
from leakgauge.errors import FOREIGN, InputError, require, said
from leakgauge.registry import DATA

LEAST = 1 / 8
"""Share of the stored bits' range that the first file must use where no window is given."""
GREY = ("MONOCHROME1", "MONOCHROME2")
"""Photometric interpretations: the lowest value is white in the first."""


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

    channels: int = 1
    window: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rising = not self.window or (len(self.window) == 2 and self.window[0] < self.window[1])
        require(rising, "window", f"is {list(self.window)}", "give lowest and highest value, e.g. [-1000, 1000]")
        super().__post_init__()

    @property
    def suffixes(self) -> frozenset[str]:
        return frozenset({".dcm", ".dicom"})

    @property
    def name(self) -> str:
        return f"dicom:{self.path}"

    @cached_property
    def span(self) -> tuple[float, float]:
        """The values that become 0 and 1."""
        if self.window:
            return self.window[0], self.window[1]
        name = self.names([0])[0]
        scan = _Scan.read(self.files[0], name)
        (low, high), lowest, highest = scan.range, float(scan.values.min()), float(scan.values.max())
        used = (highest - lowest) / (high - low)
        problem = f"uses {100 * used:.2g} % of [{low:g}, {high:g}]: so dark a picture is harder to attack than yours is"
        require(used >= LEAST, name, problem, f"set data.window as you train, e.g. [{lowest:g}, {highest:g}]")
        return low, high

    def picture(self, path: Path, name: str) -> Float[Tensor, "c h w"]:
        scan, (low, high) = _Scan.read(path, name), self.span
        lowest, highest = float(scan.values.min()), float(scan.values.max())
        inside = bool(self.window) or low <= lowest <= highest <= high
        problem = f"spans [{lowest:g}, {highest:g}], and the first file can hold [{low:g}, {high:g}]"
        require(inside, name, problem, "set data.window, e.g. [-1000, 1000]")
        unit = ((scan.values - low) / (high - low)).clip(0, 1)
        unit = 1 - unit if scan.is_white_low else unit
        return unit_plane(Image.fromarray(unit.astype(np.float32)), channels=self.depth, size=self.size)


@dataclass(frozen=True)
class _Scan:
    """One frame: values after the rescale, the range that the stored bits can hold, and which end is white."""

    values: Any
    range: tuple[float, float]
    is_white_low: bool

    @staticmethod
    def read(path: Path, name: str) -> _Scan:
        """Raises `InputError` where pydicom is missing, and for a file that is no grey scan of one frame."""
        try:
            import pydicom
        except ImportError as error:
            raise InputError("data.source", "DICOM needs pydicom", "pip install 'leakgauge[dicom]'") from error
        try:
            found = pydicom.dcmread(path)
            kind, frames = str(found.PhotometricInterpretation), int(found.get("NumberOfFrames", 1))
            slope, intercept = (
                float(found.get(key, plain)) for key, plain in (("RescaleSlope", 1), ("RescaleIntercept", 0))
            )
            bits, signed = int(found.BitsStored), bool(found.PixelRepresentation)
            stored: Any = found.pixel_array
        except FOREIGN as error:  # pydicom and its decoders raise what they like on damaged files
            hint = "give whole DICOM files; compressed ones need pydicom's decoders, e.g. pylibjpeg"
            raise InputError(name, f"is not a readable scan ({said(error)})", hint) from error
        require(kind in GREY and frames == 1, name, f"is {kind} of {frames} frames", "give grey scans of one frame")
        ends: Sequence[float] = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        low, high = sorted(slope * end + intercept for end in ends)
        return _Scan(stored.astype(np.float64) * slope + intercept, (low, high), kind == "MONOCHROME1")
