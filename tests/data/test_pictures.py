"""Pictures of a folder, and the photos that ship with scikit-image."""

from __future__ import annotations

import importlib.metadata
import socket
from pathlib import Path

import numpy as np
import pytest
import skimage
import torch
from PIL import Image

from leakgauge.data import Samples, check, gallery, open_source, public
from leakgauge.data.pictures import PHOTOS, RESERVE
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


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("samples reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_photos_are_part_of_the_wheel() -> None:
    shipped = {str(f) for f in importlib.metadata.files("scikit-image") or ()}
    assert {f"skimage/data/{name}" for name in (*PHOTOS, *RESERVE)} <= shipped


def test_reads_only_what_is_asked_in_that_order() -> None:
    some, all_of_them = Samples(size=16).read([5, 2]), Samples(size=16).read(range(8))
    assert some.inputs.shape == (2, 3, 16, 16)
    assert torch.equal(some.inputs, all_of_them.inputs[[5, 2]])
    assert some.labels.tolist() == [5, 2]
    assert Samples().names([1]) == ["chelsea.png"]
    assert Samples().read([]).inputs.shape == (0, 3, 32, 32)


def test_photos_are_in_colour_centred_and_in_range() -> None:
    x = Samples(size=32).read(range(8)).inputs
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert all(float((image[0] - image[2]).abs().mean()) > 0.005 for image in x)
    # The rocket is 427 high and 640 wide: its middle column of full resolution is in the middle of the square.
    photo = skimage.io.imread(f"{skimage.__path__[0]}/data/rocket.jpg")[:, 106:533] / 255
    blocks = torch.from_numpy(photo[:416, :416].reshape(32, 13, 32, 13, 3).mean((1, 3))).permute(2, 0, 1)
    assert float(torch.corrcoef(torch.stack([blocks.flatten(), x[3].double().flatten()]))[0, 1]) > 0.9


@pytest.mark.parametrize("exclude", [[0], [0, 1, 2, 3], list(range(7)), list(range(8))], ids=len)
def test_a_hundred_distractors_from_eight_photos(exclude: list[int], generator: torch.Generator) -> None:
    """Whatever the batch: distinct, never a true photo, and no public image is in the gallery."""
    source = Samples(size=16)
    distractors, known = gallery(source, exclude, 100, generator), public(source, exclude, 20, generator)
    assert distractors.shape == (100, 3, 16, 16)
    distances = torch.cdist(torch.cat([distractors, known]).flatten(1), source.read(exclude).inputs.flatten(1))
    assert float(distances.min()) > 0.5
    assert float(torch.pdist(torch.cat([distractors, known]).flatten(1)).min()) > 0
    # Not near-blank either: a gallery of flat images would make identification easy.
    assert float(distractors.flatten(1).std(1).median()) > 0.05


def test_distractors_come_from_the_generator_alone() -> None:
    def drawn(seed: int) -> torch.Tensor:
        return gallery(Samples(size=8), [0], 10, torch.Generator().manual_seed(seed))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
