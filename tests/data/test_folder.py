"""Folders, good and bad."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leakgauge.data import check, open_source
from leakgauge.errors import InputError


def save(path: Path, value: int = 128, mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode in ("L", "I;16") else (value,) * len(mode)).save(path)


def save_edge(path: Path, size: tuple[int, int] = (40, 30)) -> None:
    """Half black, half grey: a picture of one colour is refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", size)
    picture.paste((128, 128, 128), (0, 0, size[0] // 2, size[1]))
    picture.save(path)


def test_classes_are_subfolders_taken_in_turn(tmp_path: Path) -> None:
    for name in ("b/1.png", "b/2.png", "a/1.png", "a/2.png", "a/3.png", "c/1.png"):
        save_edge(tmp_path / name)
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    source = open_source(f"folder:{tmp_path}", size=8)
    assert source.names(range(6)) == ["a/1.png", "b/1.png", "c/1.png", "a/2.png", "b/2.png", "a/3.png"]
    assert source.labels.tolist() == [0, 1, 2, 0, 1, 0]
    assert (source.classes, source.shape) == (3, (3, 8, 8))
    check(source, range(len(source)))


def test_flat_folder_is_one_label_but_two_classes(tmp_path: Path) -> None:
    save(tmp_path / "x.png")
    source = open_source(f"folder:{tmp_path}")
    assert (source.labels.tolist(), source.classes) == ([0], 2)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("mode", "value", "seen"), [("L", 51, 0.2), ("I;16", 13107, 0.2), ("RGBA", 51, 0.2), ("CMYK", 0, 1.0)]
)
def test_modes_are_converted(tmp_path: Path, mode: str, value: int, seen: float, channels: int) -> None:
    """Sixteen-bit grey, as X-rays are, is scaled and not cut off at 255."""
    save(tmp_path / ("x.tif"), value, mode)
    x = open_source(f"folder:{tmp_path}", channels=channels, size=8).read([0]).inputs
    assert x.shape == (1, channels, 8, 8)
    torch.testing.assert_close(x, torch.full_like(x, seen), atol=0.005, rtol=0)


def test_resize_is_antialiased(tmp_path: Path) -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "board.png")
    x = open_source(f"folder:{tmp_path}", channels=1, size=8).read([0]).inputs
    assert float((x - 0.5).abs().max()) < 0.05


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="folder"):
            open_source(f"folder:{path}")


@pytest.mark.parametrize("content", [b"", b"not an image", "truncated"], ids=["empty", "text", "truncated"])
def test_corrupt_image_is_named_before_anything_runs(tmp_path: Path, content: bytes | str) -> None:
    save_edge(tmp_path / "good.png")
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "bad.png")
    whole = (tmp_path / "bad.png").read_bytes()
    (tmp_path / "bad.png").write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
    source = open_source(f"folder:{tmp_path}")
    check(source, [1])
    with pytest.raises(InputError, match=r"bad\.png"):
        check(source, [0, 1])


def test_differing_shapes_without_a_size(tmp_path: Path) -> None:
    save_edge(tmp_path / "a.png", size=(8, 8))
    save_edge(tmp_path / "b.png", size=(9, 8))
    source = open_source(f"folder:{tmp_path}", size=None)
    for refused in (lambda: check(source, [0, 1]), lambda: source.read([0, 1])):
        with pytest.raises(InputError, match=r"b\.png.*data\.size"):
            refused()
