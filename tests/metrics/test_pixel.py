"""PSNR and MSE, per image."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduce.metrics import PSNRPeak, SSIMCropped, SSIMGlobal
from skimage.metrics import peak_signal_noise_ratio

from leakgauge.errors import InputError
from leakgauge.metrics import MSE, PSNR, PSNR_CAP, SSIM, Metric, is_exact


def pair(n: int = 4, shape: tuple[int, ...] = (3, 9, 7), seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.rand(n, *shape, generator=g), torch.rand(n, *shape, generator=g)


@given(seed=st.integers(0, 99), low=st.sampled_from([0.0, -1.0, 5.0]), width=st.sampled_from([1.0, 2.0, 255.0]))
def test_agrees_with_scikit_image_per_image(seed: int, low: float, width: float) -> None:
    a, b = (low + width * t.double() for t in pair(seed=seed))
    scores = PSNR(data_range=width, low=low)(a, b)
    for p, q, score in zip(a, b, scores.tolist(), strict=True):
        assert score == pytest.approx(peak_signal_noise_ratio(q.numpy(), p.numpy(), data_range=width))


def test_sixteen_copies_of_a_20_db_image_are_16_times_20_db() -> None:
    """LeakPro's sum gives 325; pooled scores would hide a single good image."""
    x = torch.full((16, 3, 8, 8), 0.5)
    assert PSNR()(x + 0.1, x).tolist() == pytest.approx([20.0] * 16, abs=1e-4)


def test_a_perfect_image_does_not_lift_its_neighbours() -> None:
    a, b = pair(2)
    a[0] = b[0]
    scores = PSNR()(a, b)
    assert scores[0] == PSNR_CAP
    assert scores[1] == PSNR()(a[1:], b[1:])[0]
    assert is_exact(scores).tolist() == [True, False]


def test_clamps_and_stays_finite() -> None:
    x = torch.zeros(4, 1, 2, 2)
    wild = torch.stack([torch.full((1, 2, 2), v) for v in (math.inf, -math.inf, math.nan, 7.0)])
    assert PSNR()(wild, x).tolist() == pytest.approx([0.0, PSNR_CAP, 10 * math.log10(4), 0.0])
    assert PSNRPeak()(torch.ones(1, 1, 2, 2), x[:1]).tolist() == [-PSNR_CAP]
    assert PSNRPeak()(x[:1], x[:1]).tolist() == [PSNR_CAP]


def test_peak_variant_is_lower_on_dark_images_only() -> None:
    x = torch.rand(2, 1, 6, 6)
    x[0] *= 0.5 / x[0].max()
    x[1] /= x[1].max()
    gap = PSNR()(x * 0.9, x) - PSNRPeak()(x * 0.9, x)
    assert gap.tolist() == pytest.approx([20 * math.log10(2), 0.0], abs=1e-5)


def test_recordings_and_empty_batches() -> None:
    a, b = pair(3, (12, 50))
    assert MSE()(a, b).tolist() == pytest.approx([float((p - q).square().mean()) for p, q in zip(a, b, strict=True)])
    for metric in (MSE(), PSNR(), PSNRPeak()):
        assert metric(a[:0], b[:0]).shape == (0,)


def test_shapes_must_agree() -> None:
    with pytest.raises(InputError, match="assign"):
        PSNR()(torch.zeros(1, 3, 4, 4), torch.zeros(2, 3, 4, 4))


@pytest.mark.parametrize("build", [MSE, PSNR, PSNRPeak, SSIM, SSIMCropped, SSIMGlobal])
def test_every_metric_scores_each_image_alone_and_in_its_range(build: type[Metric]) -> None:
    metric = build(data_range=2.0, low=-1.0)
    a, b = (3 * t - 1.5 for t in pair(5, (3, 16, 16)))
    whole = metric(a, b)
    alone = torch.cat([metric(p[None], q[None]) for p, q in zip(a, b, strict=True)])
    torch.testing.assert_close(whole, alone, rtol=1e-12, atol=1e-12)
    assert torch.equal(whole, metric(a.clamp(-1, 1), b.clamp(-1, 1)))
    assert all(metric.range[0] <= score <= metric.range[1] for score in whole.tolist())
    best = max if metric.higher_means == "more leakage" else min
    exact = metric(b, b)
    assert all(best(p, q) == q for p, q in zip(whole.tolist(), exact.tolist(), strict=True))
