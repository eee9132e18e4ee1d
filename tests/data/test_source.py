"""Batches, distractors and public data."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.data import Samples, check, client_batches, gallery, open_source, public, spec
from leakgauge.data.arrays import npz
from leakgauge.data.source import CIFAR_MEAN, Share, share
from leakgauge.errors import InputError


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
