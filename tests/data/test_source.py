"""What every source keeps, by what name it is opened, and how others' examples are compared in chunks."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from leakgauge.data import Samples, check, client_batches, gallery, open_source, public, spec
from leakgauge.data.arrays import npz
from leakgauge.data.source import CIFAR_MEAN, Share, share
from leakgauge.errors import InputError
from leakgauge.metrics import likeness
from leakgauge.metrics.likeness import nearest_public, pairwise_mse


def archive(folder: Path, x: np.ndarray, y: np.ndarray | None = None) -> str:
    path = folder / "data.npz"
    np.savez(path, x=x, y=np.arange(len(x)) % 3 if y is None else y)
    return str(path)


def pictures(n: int, side: int = 12) -> np.ndarray:
    return np.random.default_rng(0).random((n, 3, side, side), dtype=np.float32)


@given(batch=st.integers(1, 8), batches=st.integers(1, 8), start=st.integers(0, 7))
def test_batches_are_disjoint_and_consecutive_or_refused(batch: int, batches: int, start: int) -> None:
    source = Samples()
    if batch * batches > len(source) - start:
        with pytest.raises(InputError, match="batch larger than the data") as refused:
            client_batches(source, batch, batches, start)
        assert refused.value.field == ("data.batch" if batch > len(source) - start else "data.batches")
        return
    taken = client_batches(source, batch, batches, start)
    assert [len(b) for b in taken] == [batch] * batches
    assert list(chain.from_iterable(taken)) == list(range(start, start + batch * batches))


@pytest.mark.parametrize(("batch", "batches", "start"), [(0, 1, 0), (1, 0, 0), (1, 1, 8), (1, 1, -1)])
def test_senseless_batches_are_refused(batch: int, batches: int, start: int) -> None:
    with pytest.raises(InputError):
        client_batches(Samples(), batch, batches, start)


@given(n=st.integers(2, 40), exclude=st.frozensets(st.integers(0, 39), max_size=10))
def test_shares_are_disjoint_and_leave_out_the_excluded(n: int, exclude: frozenset[int]) -> None:
    mine, theirs = (share(n, exclude, part) for part in (Share.GALLERY, Share.PUBLIC))
    assert not (set(mine) | set(theirs)) & exclude
    assert set(mine) | set(theirs) == set(range(n)) - exclude
    if len(set(range(n)) - exclude) > 1:
        assert not set(mine) & set(theirs)


def test_whole_examples_where_there_are_enough(tmp_path: Path, generator: torch.Generator) -> None:
    x = pictures(40)
    x[5] = x[0]  # an exact copy of the truth is no distractor
    source = npz(path=archive(tmp_path, x))
    lent = torch.cat([gallery(source, [0, 1], 12, generator), public(source, [0, 1], 12, generator)])
    known = {image.tobytes(): i for i, image in enumerate(x)}
    indices = [known[image.numpy().tobytes()] for image in lent]
    assert len(set(indices)) == 24
    assert not {0, 1, 5} & set(indices)


def test_too_few_pictures_are_topped_up_with_crops(tmp_path: Path, generator: torch.Generator) -> None:
    source = npz(path=archive(tmp_path, pictures(5, side=64)))
    lent = gallery(source, [0], 30, generator)
    assert lent.shape == (30, 3, 64, 64)
    assert len({image.numpy().tobytes() for image in lent}) == 30
    assert 0 <= float(lent.min()) <= float(lent.max()) <= 1


def test_other_data_are_not_cut_up(tmp_path: Path, generator: torch.Generator) -> None:
    source = npz(path=archive(tmp_path, np.random.default_rng(0).random((6, 50))))
    assert len(gallery(source, [0], 30, generator)) == 3


def test_nothing_left_to_compare_with_is_refused(tmp_path: Path, generator: torch.Generator) -> None:
    source = npz(path=archive(tmp_path, pictures(2)))
    with pytest.raises(InputError, match="leaves none"):
        gallery(source, [0, 1], 5, generator)


def test_check_names_the_example_of_another_shape(shared: Path) -> None:
    check(open_source(f"parquet:{shared}/data/mnist-test.parquet"), [0, 9999])


def test_statistics_follow_channels_and_range(tmp_path: Path) -> None:
    assert spec(Samples()).mean == CIFAR_MEAN
    assert spec(Samples(normalise=False)).std == (1.0,)
    grey = npz(path=archive(tmp_path, np.zeros((3, 1, 8, 8))), low=-1.0, high=3.0)
    assert (spec(grey).mean, spec(grey).std) == ((1.0,), (1.0,))
    assert spec(npz(path=archive(tmp_path, np.zeros((3, 1, 50))), low=-1.0)).mean == (0.0,)


class Rows:
    """What ``datasets.load_dataset`` answers, as far as it is used."""

    features = {"img": SimpleNamespace(), "label": SimpleNamespace(num_classes=5)}  # noqa: RUF012

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [0, 1, 2, 3]
        if key == 3:
            raise OSError("truncated")
        return {"img": Image.fromarray(np.full((6, 9), key * 50, np.uint8)), "label": key}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def load_dataset(path: str, name: str | None = None, *, split: str) -> Rows:
        calls.append((path, name, split))
        if path == "nobody/nothing":
            raise FileNotFoundError("Dataset doesn't exist")
        return Rows()

    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_reads_through_its_client(hub: list[Any]) -> None:
    source = open_source("hf:ylecun/mnist", split="train", size=4)
    batch = source.read([2, 1])
    assert hub == [("ylecun/mnist", None, "train")]
    assert (source.shape, source.classes, len(source)) == ((1, 4, 4), 5, 4)
    assert batch.labels.tolist() == [2, 1]
    assert batch.inputs.mean((1, 2, 3)).tolist() == pytest.approx([100 / 255, 50 / 255])
    with pytest.raises(InputError, match=r"hf:ylecun/mnist\[3\]"):
        source.read([3])


def test_hub_failures_explain_themselves(hub: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="doesn't exist"):
        open_source("hf:nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"\[hub\]"):
        open_source("hf:ylecun/mnist")


def test_names_and_options() -> None:
    assert open_source("samples", size=8) == Samples(size=8)
    for text, complaint in [
        ("sample", "did you mean 'samples'"),
        ("parket:x", "did you mean 'parquet'"),
        ("folder", "names no place"),
        ("npz:", "names no place"),
        ("samples:x", "takes no path"),
        ("no.such.module:thing", "cannot import"),
    ]:
        with pytest.raises(InputError, match=complaint):
            open_source(text)
    with pytest.raises(InputError, match=r"data\.sise.*did you mean 'size'"):
        open_source("samples", sise=8)


def test_third_party_sources_resolve_by_module() -> None:
    assert open_source("leakgauge.data.pictures:Samples", size=8) == Samples(size=8)


def test_extras_are_not_imported_until_used() -> None:
    code = "import sys, leakgauge.data, leakgauge.metrics; print(*set(sys.argv[1:]) & set(sys.modules))"
    command = [sys.executable, "-c", code, "pyarrow", "datasets", "torchmetrics", "torchvision"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == ""


def test_comparing_in_chunks_is_comparing_at_once(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand((3, 3, 6, 6), generator=generator)
    pictures = torch.randint(256, (11, 3, 6, 6), generator=generator) / 255

    def all_of() -> list[torch.Tensor]:
        return [pairwise_mse(x, pictures), nearest_public(x, pictures)]

    at_once = all_of()
    monkeypatch.setattr(likeness, "AT_ONCE", 2000)
    assert all(torch.equal(a, b) for a, b in zip(all_of(), at_once, strict=True))
