"""Polishes against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduce.rog.polish import Clamp, EqualiseHistogram, MaxNormalise

from leakgauge.errors import InputError


def pictures(seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(seed))


def test_clamp() -> None:
    x = pictures()
    assert torch.equal(Clamp(low=-1.0, high=2.0)(x), x.maximum(torch.tensor(-1.0)).minimum(torch.tensor(2.0)))
    with pytest.raises(InputError, match="high"):
        Clamp(low=1.0, high=1.0)


def test_max_normalise_is_per_example_and_keeps_zeros() -> None:
    x = torch.cat([pictures(), torch.zeros(1, 3, 6, 5)])
    x[0] *= 100
    found = MaxNormalise()(x)
    assert found.abs().flatten(1).amax(1).tolist() == pytest.approx([1, 1, 0])
    for before, after in zip(x[:2], found[:2], strict=True):
        torch.testing.assert_close(after * before.abs().max(), before)
    assert MaxNormalise()(torch.rand(2, 7)).shape == (2, 7)


def test_equalised_histograms_are_even_channel_by_channel() -> None:
    found = EqualiseHistogram(low=-1.0, high=3.0)(pictures())
    even = -1 + 4 * (torch.arange(30) + 0.5) / 30
    for channel in found.flatten(0, 1):
        torch.testing.assert_close(channel.flatten().sort().values, even)


@given(st.integers(0, 50))
def test_equalisation_is_the_mid_rank_and_ignores_monotone_changes(seed: int) -> None:
    x = pictures(seed).round()
    found = EqualiseHistogram()(x)
    torch.testing.assert_close(found, EqualiseHistogram()(torch.exp(x / 4) - 7))
    flat, ranks = x[0, 0].flatten(), found[0, 0].flatten()
    for value, rank in zip(flat.tolist(), ranks.tolist(), strict=True):
        below, same = int((flat < value).sum()), int((flat == value).sum())
        assert rank == pytest.approx((below + same / 2) / 30)


def test_a_flat_channel_becomes_grey() -> None:
    assert EqualiseHistogram()(torch.full((1, 1, 4, 4), 0.9)).unique().tolist() == [0.5]
