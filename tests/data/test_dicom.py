"""Scans are read by their values: rescale, sign, depth, and which end is white. Files are written by pydicom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.data import Dicom, Folder, open_source
from leakgauge.errors import InputError

pydicom = pytest.importorskip("pydicom", reason="the extra dicom is not installed")

STORED = np.array([[0, 1, 2048], [4095, 100, 3000]])


def scan(path: Path, stored: Any = STORED, *, bits: int = 12, signed: bool = False, **tags: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.asarray(stored).astype(np.int16 if signed else np.uint16)
    meta = pydicom.dataset.FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    found = pydicom.dataset.Dataset()
    found.file_meta = meta
    found.SOPClassUID, found.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    found.Rows, found.Columns, found.SamplesPerPixel = *values.shape[-2:], 1
    found.BitsAllocated, found.BitsStored, found.HighBit = 16, bits, bits - 1
    found.PixelRepresentation, found.PhotometricInterpretation = int(signed), "MONOCHROME2"
    for key, value in tags.items():
        setattr(found, key, value)
    found.PixelData = values.tobytes()
    found.save_as(path, enforce_file_format=True)


def read(folder: Path, **options: Any) -> torch.Tensor:
    return Dicom(path=str(folder), size=None, **options).read([0]).inputs[0, 0].double()


def expected(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "twelve bits": ({}, {}, STORED / 4095),
    "sixteen bits": ({"bits": 16, "stored": STORED * 16}, {}, STORED * 16 / 65535),
    "signed": ({"stored": STORED - 2048, "signed": True}, {}, STORED / 4095),
    "rescaled": ({"RescaleSlope": 2, "RescaleIntercept": -1024}, {}, STORED / 4095),
    "a falling slope": ({"RescaleSlope": -1, "RescaleIntercept": 0}, {}, 1 - STORED / 4095),
    "low is white": ({"PhotometricInterpretation": "MONOCHROME1"}, {}, 1 - STORED / 4095),
    "a window of Hounsfield units": (
        {"RescaleSlope": 1, "RescaleIntercept": -1024},
        {"window": (-1000.0, 1000.0)},
        ((STORED - 1024 + 1000) / 2000).clip(0, 1),
    ),
    "a window, and low is white": (
        {"PhotometricInterpretation": "MONOCHROME1"},
        {"window": (0.0, 2048.0)},
        1 - (STORED / 2048).clip(0, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_scan(tmp_path: Path, name: str) -> None:
    written, options, values = CASES[name]
    scan(tmp_path / "a.dcm", **written)
    assert torch.allclose(read(tmp_path, **options), expected(values), atol=1e-7)


def test_files_of_other_slopes_are_on_one_scale(tmp_path: Path) -> None:
    """Equal stored values are not equal doses where each file has a slope of its own."""
    scan(tmp_path / "a.dcm", RescaleSlope=1)
    scan(tmp_path / "b.dcm", RescaleSlope=0.5)
    scan(tmp_path / "c.dcm", RescaleSlope=2)
    source = Dicom(path=str(tmp_path), size=None)
    a, b = source.read([0, 1]).inputs.double()
    assert torch.allclose(b, a / 2, atol=1e-7)
    with pytest.raises(InputError, match=r"c\.dcm: spans \[0, 8190\], and the first file can hold \[0, 4095\]; set"):
        source.read([2])
    assert Dicom(path=str(tmp_path), size=None, window=(0.0, 8190.0)).read([2]).inputs.max() == 1


def test_a_plan_names_the_folder_and_classes_are_its_folders(tmp_path: Path) -> None:
    scan(tmp_path / "healthy" / "a.dcm")
    scan(tmp_path / "ill" / "b.DCM", stored=np.arange(6).reshape(2, 3))
    (tmp_path / "ill" / "notes.txt").write_text("no scan")
    source = open_source(f"dicom:{tmp_path}", size=2)
    assert source.labels.tolist() == [0, 1]
    assert source.names([0, 1]) == ["healthy/a.dcm", "ill/b.DCM"]
    assert source.read([0, 1]).inputs.shape == (2, 1, 2, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"PhotometricInterpretation": "RGB"}, "is RGB of 1 frames; give grey scans"),
        ({"NumberOfFrames": 2, "stored": np.stack([STORED, STORED])}, "is MONOCHROME2 of 2 frames"),
    ],
)
def test_what_is_no_grey_scan_is_one_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    if change.get("PhotometricInterpretation") == "RGB":
        change = change | {"SamplesPerPixel": 1}
    scan(tmp_path / "a.dcm", **change)
    with pytest.raises(InputError, match=words):
        read(tmp_path, window=(0.0, 1.0))


@pytest.mark.parametrize("content", [b"", b"no scan", b"\0" * 200])
def test_a_damaged_scan_is_one_line(tmp_path: Path, content: bytes) -> None:
    scan(tmp_path / "a.dcm")
    (tmp_path / "a.dcm").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.dcm: is not a readable scan"):
        read(tmp_path)


@pytest.mark.parametrize(("bits", "white"), [(16, 65535), (12, 4095), (10, 1023)])
def test_a_deep_png_is_read_by_its_true_depth(tmp_path: Path, bits: int, white: int) -> None:
    values = np.array([[0, 1, white // 2], [white, 77, white - 1]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    grey = Folder(path=str(tmp_path), size=None, channels=1, bits=bits).read([0]).inputs[0, 0].double()
    assert torch.allclose(grey, expected(values / white), atol=1e-7)


def test_a_depth_that_is_too_small_is_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((2, 2), 5000, dtype=np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match="bits: is 12, and a picture holds 5000"):
        Folder(path=str(tmp_path), size=None, channels=1, bits=12).read([0])


def test_twelve_bits_in_sixteen_need_a_window(tmp_path: Path) -> None:
    """Audited as black pictures with 6 % of the contrast, on which the attacks found 2 of 12 where they found 11."""
    scan(tmp_path / "ill" / "a.dcm", bits=16)
    with pytest.raises(InputError, match=r"a\.dcm: uses 6\.2 % of \[0, 65535\].*data\.window.*\[0, 4095\]"):
        read(tmp_path)
    assert float(read(tmp_path, window=(0.0, 4095.0)).max()) == 1


def test_a_window_that_falls_is_told_its_order(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^window: is \(1000\.0, -1000\.0\); give lowest and highest, e\.g\."):
        read(tmp_path, window=(1000.0, -1000.0))
