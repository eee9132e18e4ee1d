"""Total variation with one root over the colours."""

from __future__ import annotations

import pytest
import torch

from leakgauge.attacks.matching import TotalVariation


@pytest.mark.parametrize("smoothing", [0.0, 1e-6])
def test_of_a_grey_edge_it_is_the_same_and_of_a_coloured_one_more(smoothing: float) -> None:
    plain, coupled = TotalVariation(0.7, smoothing), TotalVariation(0.7, smoothing, coupled=True)
    grey = torch.zeros(2, 3, 6, 6, dtype=torch.float64)
    grey[..., 3:] = 1
    assert float(coupled(grey)) == pytest.approx(float(plain(grey)), rel=1e-3, abs=2e-3)
    red = grey.clone()
    red[:, 1:] = 0
    assert float(coupled(red)) > 1.5 * float(plain(red))


def test_an_edge_of_all_colours_costs_less_than_edges_apart() -> None:
    """Which a variation of each colour by itself cannot tell."""
    together = torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    together[..., 4:] = 1
    apart = torch.zeros_like(together)
    for colour, at in enumerate((2, 4, 6)):
        apart[:, colour, :, at:] = 1
    plain, coupled = TotalVariation(1.0), TotalVariation(1.0, coupled=True)
    assert float(plain(together)) == pytest.approx(float(plain(apart)))
    assert float(coupled(apart)) > 1.5 * float(coupled(together))


def test_one_channel_has_nothing_to_couple() -> None:
    x = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(TotalVariation(1.0, coupled=True)(x)) == pytest.approx(float(TotalVariation(1.0)(x)), rel=1e-5)


def test_its_slope_is_finite_on_a_flat_picture() -> None:
    x = torch.full((1, 3, 4, 4), 0.5, dtype=torch.float64, requires_grad=True)
    slope = torch.autograd.grad(TotalVariation(1.0, coupled=True)(x), x)[0]
    assert bool(torch.isfinite(slope).all())
