"""Sum of absolute errors, per example."""

from __future__ import annotations

import pytest
import torch
from reproduce.metrics import L1

from leakgauge.errors import InputError


def test_is_a_sum_over_the_entries_of_each_example() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.rand(3, 2, 5, generator=g), torch.rand(3, 2, 5, generator=g)
    by_hand = []
    for x, y in zip(a, b, strict=True):
        by_hand.append(sum(abs(p - q) for p, q in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)))
    assert L1()(a, b).tolist() == pytest.approx(by_hand, rel=1e-6)


def test_one_per_cent_off_everywhere_is_31_on_a_small_photo() -> None:
    x = torch.full((1, 3, 32, 32), 0.5, dtype=torch.float64)
    assert L1()(x + 0.01, x).tolist() == pytest.approx([30.72])


def test_clamps_to_the_range_and_takes_empty_batches() -> None:
    x = torch.zeros(1, 4)
    assert L1()(torch.tensor([[9.0, -9.0, float("nan"), 0.25]]), x).tolist() == pytest.approx([1 + 0 + 0.5 + 0.25])
    assert L1(data_range=2.0, low=-1.0)(torch.full((1, 4), -3.0), x).tolist() == [4.0]
    assert L1()(x[:0], x[:0]).shape == (0,)


def test_bad_range() -> None:
    with pytest.raises(InputError):
        L1(data_range=0.0)
