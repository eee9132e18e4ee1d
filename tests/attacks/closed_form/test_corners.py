"""Corners of mixtures are what was mixed."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakgauge.attacks.closed_form.linear import corners


@settings(max_examples=60, deadline=None)
@given(count=st.integers(2, 6), mixtures=st.integers(0, 20), first=st.integers(0, 6), seed=st.integers(0, 2**16))
def test_corners_are_what_was_mixed(count: int, mixtures: int, first: int, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    pure = torch.randn(count, 12, generator=g, dtype=torch.float64)
    shares = torch.rand(mixtures, count, generator=g, dtype=torch.float64) + 1e-3
    rows = torch.cat([pure, shares / shares.sum(1, keepdim=True) @ pure])
    order = torch.randperm(len(rows), generator=g)
    where = order.argsort()[:count].tolist()
    first = min(first, count)
    found = corners(rows[order], count, where[:first])
    assert found[:first] == where[:first]
    assert sorted(found) == sorted(where)


def test_no_more_than_there_are_and_each_once() -> None:
    rows = torch.eye(3)[[0, 0, 1]]
    assert sorted(corners(rows, 5)) == [0, 1, 2]
    assert corners(rows[:0], 2) == []
