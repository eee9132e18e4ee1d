"""Polishes against their definitions."""

from __future__ import annotations

import pytest
import torch
from reproduce.rog.polish import Clamp, MaxNormalise

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
