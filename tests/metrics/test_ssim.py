"""The three structural similarities, against slow twins and an independent library."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reproduce.metrics import SSIMCropped, SSIMGlobal
from torch import Tensor

from leakgauge.data import Samples, open_source
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR, SSIM
from leakgauge.task import DataSpec


def pair(seed: int, channels: int = 3, side: int = 14) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(1, channels, side, side, generator=g, dtype=torch.float64)
    return (x + 0.3 * torch.randn(x.shape, generator=g, dtype=torch.float64)).clamp(0, 1), x


def slow_map(a: Tensor, b: Tensor) -> np.ndarray:
    """Wang et al. (2004), equation (13), pixel by pixel with mirrored edges."""
    offsets = np.arange(11) - 5
    window = np.exp(-(offsets[:, None] ** 2 + offsets[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    maps = []
    for p, q in zip(a.numpy(), b.numpy(), strict=True):
        p, q = (np.pad(t, 5, mode="symmetric") for t in (p, q))
        out = np.empty((p.shape[0] - 10, p.shape[1] - 10))
        for i, j in np.ndindex(out.shape):
            u, v = p[i : i + 11, j : j + 11], q[i : i + 11, j : j + 11]
            mu, mv = (window * u).sum(), (window * v).sum()
            uu, vv = (window * (u - mu) ** 2).sum(), (window * (v - mv) ** 2).sum()
            uv = (window * (u - mu) * (v - mv)).sum()
            out[i, j] = (2 * mu * mv + 1e-4) * (2 * uv + 9e-4) / ((mu**2 + mv**2 + 1e-4) * (uu + vv + 9e-4))
        maps.append(out)
    return np.stack(maps)


@pytest.mark.parametrize("channels", [1, 3])
def test_windowed_forms_agree_with_the_slow_twin(channels: int) -> None:
    a, b = pair(1, channels)
    expected = slow_map(a[0], b[0])
    assert float(SSIM()(a, b)) == pytest.approx(expected.mean(), abs=1e-9)
    assert float(SSIMCropped()(a, b)) == pytest.approx(expected[:, 5:-5, 5:-5].mean(), abs=1e-9)


def test_cropped_form_agrees_with_torchmetrics_inside() -> None:
    ssim = pytest.importorskip("torchmetrics.functional.image").structural_similarity_index_measure
    a, b = pair(2, side=24)
    _, full = ssim(a, b, data_range=1.0, return_full_image=True)
    assert float(SSIMCropped()(a, b)) == pytest.approx(float(full[..., 5:-5, 5:-5].mean()), abs=1e-6)


def test_volumes_agree_with_torchmetrics_inside() -> None:
    ssim = pytest.importorskip("torchmetrics.functional.image").structural_similarity_index_measure
    g = torch.Generator().manual_seed(5)
    x = torch.rand(1, 1, 14, 16, 15, generator=g, dtype=torch.float64)
    y = (x + 0.2 * torch.randn(x.shape, generator=g, dtype=torch.float64)).clamp(0, 1)
    _, full = ssim(y, x, data_range=1.0, return_full_image=True)
    inside = (..., *[slice(5, -5)] * 3)
    assert np.allclose(SSIM().maps(y, x)[0][inside], full[0][inside].numpy(), atol=1e-6)
    assert float(SSIM()(x, x)) == pytest.approx(1.0)


def test_global_form_agrees_with_a_slow_twin() -> None:
    a, b = pair(3)
    score = 0.0
    for weight, rows in [(0.8, 0), (0.1, 1), (0.1, 2)]:
        planes = []
        for image in (a[0], b[0]):
            values = []
            for red, green, blue in image.flatten(1).T.tolist():
                red, green, blue = (round(255 * v) for v in (red, green, blue))
                y = 0.299 * red + 0.587 * green + 0.114 * blue
                values.append(round((y, (red - y) * 0.713 + 128, (blue - y) * 0.564 + 128)[rows]))
            planes.append(np.array(values, dtype=float))
        p, q = planes
        sp, sq, spq = p.std(), q.std(), ((p - p.mean()) * (q - q.mean())).mean()
        c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
        luminance = (2 * p.mean() * q.mean() + c1) / (p.mean() ** 2 + q.mean() ** 2 + c1)
        score += weight * luminance * (2 * sp * sq + c2) / (sp**2 + sq**2 + c2) * (spq + c2 / 2) / (sp * sq + c2 / 2)
    assert float(SSIMGlobal()(a, b)) == pytest.approx(score, abs=1e-9)


def blurred(x: Tensor) -> Tensor:
    small = F.interpolate(x, scale_factor=0.25, mode="bicubic", antialias=True)
    return F.interpolate(small, x.shape[-2:], mode="bicubic").clamp(0, 1)


def test_global_form_flatters_a_blur(shared: Path) -> None:
    """A quarter-resolution blur at 128 px: about .95 with one global window, .65 with local ones, at 24 dB."""
    x = open_source(f"parquet:{shared}/data/imagenet-sample-256.parquet", size=128).read(range(16)).inputs
    y = blurred(x)
    whole, local, psnr = (float(metric(y, x).mean()) for metric in (SSIMGlobal(), SSIM(), PSNR()))
    assert whole == pytest.approx(0.953, abs=0.03)
    assert local == pytest.approx(0.648, abs=0.08)
    assert psnr == pytest.approx(24.1, abs=2)


def test_global_form_flatters_a_blur_of_the_shipped_photos() -> None:
    x = Samples(size=128).read(range(8)).inputs
    assert bool((SSIMGlobal()(blurred(x), x) > SSIM()(blurred(x), x) + 0.1).sum() >= 5)


@pytest.mark.parametrize("metric", [SSIM(), SSIMCropped(), SSIMGlobal()], ids=lambda m: m.name)
def test_flat_images_give_numbers(metric: SSIM) -> None:
    flat = torch.stack([torch.zeros(3, 16, 16), torch.ones(3, 16, 16), torch.full((3, 16, 16), math.nan)])
    assert bool(metric(flat, flat.flip(0).nan_to_num(0.3)).isfinite().all())
    assert metric(flat[:1], flat[:1]).tolist() == pytest.approx([1.0])
    assert metric(flat[:0], flat[:0]).shape == (0,)


@pytest.mark.parametrize("shape", [(3, 10, 32), (12, 100), (2, 16, 16)], ids=str)
def test_says_where_it_is_not_defined(shape: tuple[int, ...]) -> None:
    assert not SSIM().defined_for(DataSpec(shape=shape, classes=2))
    with pytest.raises(InputError, match="not defined"):
        SSIM()(torch.zeros(1, *shape), torch.zeros(1, *shape))
    assert SSIM().defined_for(DataSpec(shape=(1, 11, 11), classes=2))
    assert SSIMGlobal().defined_for(DataSpec(shape=(1, 4, 4), classes=2))
