"""PSNR of bytes, against scikit-image on arrays of bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reproduce.metrics import PSNRBytes
from skimage.metrics import peak_signal_noise_ratio

from leakgauge.metrics import PSNR, PSNR_CAP
from leakgauge.task import DataSpec


def to_bytes(x: torch.Tensor) -> np.ndarray:
    return np.clip(np.rint(x.numpy() * 255), 0, 255).astype(np.uint8)


def test_agrees_with_scikit_image_on_bytes() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.rand(5, 3, 9, 7, generator=g, dtype=torch.float64)
    found = x + 0.2 * torch.randn(x.shape, generator=g, dtype=torch.float64)
    expected = [peak_signal_noise_ratio(to_bytes(q), to_bytes(p)) for p, q in zip(found, x, strict=True)]
    assert PSNRBytes()(found, x).tolist() == pytest.approx(expected)
    assert PSNRBytes(data_range=2.0, low=-1.0)(2 * found - 1, 2 * x - 1).tolist() == pytest.approx(expected)


def test_less_than_half_a_level_is_nothing() -> None:
    x = torch.full((1, 3, 4, 4), 100 / 255, dtype=torch.float64)
    assert PSNRBytes()(x + 0.4 / 255, x).tolist() == [PSNR_CAP]
    assert float(PSNR()(x + 0.4 / 255, x)) < 60
    assert float(PSNRBytes()(x + 0.6 / 255, x)) == pytest.approx(20 * math.log10(255))


def test_not_a_number_and_empty_batches() -> None:
    flat = torch.stack([torch.zeros(3, 4, 4), torch.full((3, 4, 4), math.nan)])
    assert bool(PSNRBytes()(flat, torch.ones(2, 3, 4, 4)).isfinite().all())
    assert PSNRBytes()(flat[:0], flat[:0]).shape == (0,)
    assert not PSNRBytes().defined_for(DataSpec((1, 256), 2))
