"""Maps of a span come apart where their zeros hold them."""

from __future__ import annotations

import pytest
import torch

from leakgauge.attacks.features.demixing import unmixed


@pytest.mark.parametrize(("count", "noise"), [(4, 1e-6), (8, 6e-6)])
def test_a_map_lies_where_the_zeros_that_hold_it_put_it(count: int, noise: float) -> None:
    """One that fewer zeros held than lie near it was certified, further off than it said."""
    for seed in range(12):
        draw = torch.Generator().manual_seed(seed)
        shared = 2 * torch.randn(1, 1500, generator=draw, dtype=torch.float64)
        maps = (torch.randn(count, 1500, generator=draw, dtype=torch.float64) + shared).clamp_min(0)
        mixed = torch.randn(count, count, generator=draw, dtype=torch.float64) @ (maps / maps.norm(dim=1, keepdim=True))
        span = torch.linalg.qr(mixed.T)[0].T
        span = span + noise * torch.randn(span.shape, generator=draw, dtype=torch.float64) / 1500**0.5
        made, basis = unmixed(span, draw, noise=noise), torch.linalg.qr(span.T)[0].T
        points = basis[:, basis.norm(dim=0) > 1e-3 * basis.norm(dim=0).max()]
        units, planes = points / points.norm(dim=0), made.maps @ basis.T
        assert len(planes) == count
        for plane in planes / planes.norm(dim=1, keepdim=True):
            on = units[:, (plane @ units).abs() < 10 * noise]
            held = torch.linalg.eigh(on @ on.T)[1][:, 0]
            assert float((plane - held * torch.sign(plane @ held)).norm()) < 1e-9
