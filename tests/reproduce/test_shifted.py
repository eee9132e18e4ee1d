"""The shift-tolerant PSNR against every shift, one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduce.metrics.variants import PSNRShifted, best_shifts

from leakgauge.errors import InputError
from leakgauge.metrics import PSNR, PSNR_CAP
from leakgauge.task import DataSpec


def pair(n: int, shape: tuple[int, int, int], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, *shape, generator=g), torch.rand(n, *shape, generator=g)


def by_hand(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h, w = a.shape[-2:]
    return torch.stack([PSNR()(a.roll((dy, dx), (2, 3)), b) for dy in range(h) for dx in range(w)]).amax(0)


@given(seed=st.integers(0, 99), shape=st.sampled_from([(1, 4, 5), (3, 6, 6), (2, 5, 3), (1, 1, 7)]))
def test_it_is_the_best_over_all_shifts(seed: int, shape: tuple[int, int, int]) -> None:
    a, b = pair(3, shape, seed)
    torch.testing.assert_close(PSNRShifted()(a, b), by_hand(a, b), rtol=1e-9, atol=1e-9)


@given(dy=st.integers(-9, 9), dx=st.integers(-9, 9), seed=st.integers(0, 9))
def test_a_rolled_picture_is_exact_and_its_shift_is_found(dy: int, dx: int, seed: int) -> None:
    x = pair(1, (3, 8, 7), seed)[0]
    rolled = x.roll((dy, dx), (2, 3))
    assert PSNRShifted()(rolled, x).tolist() == [PSNR_CAP]
    assert best_shifts(rolled.double(), x.double()).tolist() == [[-dy % 8, -dx % 7]]


def test_never_below_psnr_and_each_image_alone() -> None:
    a, b = pair(6, (3, 8, 8))
    whole = PSNRShifted()(a, b)
    assert bool((whole >= PSNR()(a, b)).all())
    assert bool((whole > PSNR()(a, b) + 0.01).any())
    alone = torch.cat([PSNRShifted()(p[None], q[None]) for p, q in zip(a, b, strict=True)])
    torch.testing.assert_close(whole, alone)
    assert PSNRShifted()(a[:0], b[:0]).shape == (0,)


def test_range_clamping_and_what_is_refused() -> None:
    metric = PSNRShifted(data_range=2.0, low=-1.0)
    a, b = (3 * t - 1.5 for t in pair(2, (3, 5, 5)))
    torch.testing.assert_close(metric(a, b), PSNRShifted()((a.clamp(-1, 1) + 1) / 2, (b.clamp(-1, 1) + 1) / 2))
    nowhere = metric(torch.full_like(a, torch.nan), b)
    assert all(metric.range[0] <= score <= metric.range[1] for score in nowhere.tolist())
    assert metric.defined_for(DataSpec((3, 8, 8), 2))
    assert not metric.defined_for(DataSpec((12,), 2))
    with pytest.raises(InputError, match="data_range"):
        PSNRShifted(data_range=0.0)
