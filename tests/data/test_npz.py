"""Archives, good and bad."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leakgauge.data import open_source, spec
from leakgauge.errors import InputError

RNG = np.random.default_rng(0)


def save(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "d.npz", **arrays)
    return f"npz:{folder / 'd.npz'}"


def test_bytes_and_floats_agree(tmp_path: Path) -> None:
    picture = RNG.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    y = np.array([0, 2, 1, 0])
    by_bytes = open_source(save(tmp_path, images=picture, labels=y[:, None])).read(range(4))
    for x in (picture.transpose(0, 3, 1, 2) / 255, picture / 255):
        by_floats = open_source(save(tmp_path, x=x.astype(np.float32), y=y)).read(range(4))
        assert by_floats.inputs.shape == (4, 3, 6, 5)
        torch.testing.assert_close(by_floats.inputs, by_bytes.inputs)
    assert by_bytes.labels.tolist() == [0, 2, 1, 0]


@pytest.mark.parametrize("shape", [(3, 6, 3), (3, 6, 1), (1, 6, 3)])
def test_floats_with_their_channels_first_stay_so_however_narrow(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = RNG.random((4, *shape)).astype(np.float32)
    read = open_source(save(tmp_path, x=x, y=np.arange(4) % 3)).read(range(4))
    torch.testing.assert_close(read.inputs, torch.from_numpy(x))


def test_grey_bytes_need_no_channel_axis(tmp_path: Path) -> None:
    source = open_source(save(tmp_path, x=np.zeros((3, 28, 28), np.uint8), y=np.arange(3)), size=14)
    assert source.shape == tuple(source.read([0]).inputs.shape[1:]) == (1, 14, 14)


def test_a_recording_is_no_picture(tmp_path: Path) -> None:
    ecg = RNG.normal(size=(5, 12, 100)).clip(-3, 3)
    source = open_source(save(tmp_path, x=ecg, y=np.arange(5) % 2), low=-3.0, high=3.0)
    assert spec(source).shape == (12, 100)
    assert (spec(source).low, spec(source).high, spec(source).classes) == (-3.0, 3.0, 2)
    torch.testing.assert_close(source.read([4]).inputs[0].double(), torch.from_numpy(ecg[4]), atol=1e-6, rtol=0)


X, Y = np.zeros((4, 3, 8, 8)), np.arange(4)


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"x": X + 2, "y": Y}, "outside"),
        ({"x": X - 0.1, "y": Y}, "outside"),
        ({"x": np.full_like(X, np.nan), "y": Y}, "NaN"),
        ({"x": np.full_like(X, np.inf), "y": Y}, "NaN"),
        ({"x": X, "y": Y[:3]}, "3 labels for 4"),
        ({"x": X, "y": Y - 1}, "0, 1, 2"),
        ({"x": X, "y": Y + 0.5}, "0, 1, 2"),
        ({"x": X, "y": X}, "one label an example"),
        ({"x": X}, "no array 'y'"),
        ({"y": Y}, "no array 'x'"),
        ({"x": X.astype(np.int64), "y": Y}, "int64"),
        ({"x": X[:0], "y": Y[:0]}, "shape"),
        ({"x": np.array([{}, {}, {}, {}], dtype=object), "y": Y}, "cannot read"),
        ({"x": np.zeros((4, 8, 8, 5), np.uint8), "y": Y}, "channels"),
    ],
)
def test_bad_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        open_source(save(tmp_path, **arrays))


def test_broken_files_are_refused(tmp_path: Path) -> None:
    save(tmp_path, x=RNG.random((4, 3, 8, 8)), y=Y)
    path = tmp_path / "d.npz"
    whole = path.read_bytes()
    np.save(tmp_path / "single.npy", X)
    for content in (
        b"",
        b"text",
        whole[: len(whole) // 2],
        whole[:200] + b"\0" * 50 + whole[250:],
        (tmp_path / "single.npy").read_bytes(),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"data\.source"):
            open_source(f"npz:{path}")
    with pytest.raises(InputError, match="cannot read"):
        open_source(f"npz:{tmp_path}/nowhere.npz")


def test_size_for_no_picture_and_too_few_classes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no pictures"):
        open_source(save(tmp_path, x=np.zeros((4, 50)), y=Y), size=32)
    with pytest.raises(InputError, match="classes"):
        open_source(save(tmp_path, x=X, y=Y), classes=3)
