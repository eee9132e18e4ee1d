"""The photos that every installation has."""

from __future__ import annotations

import importlib.metadata
import socket

import pytest
import skimage
import torch

from leakgauge.data import Samples, gallery, public
from leakgauge.data.pictures import PHOTOS, RESERVE


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
