"""Degradations: ranges, strengths, and what they must be on hand-made pictures."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reproduce.denoiser.degradations import Blur, Noise, Shrink, Shuffled
from scipy.ndimage import gaussian_filter
from torch import Tensor


def pictures(n: int = 4, size: int = 16, seed: int = 0) -> Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@given(
    part=st.sampled_from([Shrink(), Noise(), Blur(), Shuffled()]),
    n=st.integers(1, 5),
    height=st.integers(4, 21),
    width=st.integers(4, 21),
    seed=st.integers(0, 2**31),
)
def test_shape_and_range_are_kept_and_the_seed_decides(part, n: int, height: int, width: int, seed: int) -> None:
    images = torch.rand(n, 3, height, width, generator=torch.Generator().manual_seed(seed))
    kept = images.clone()
    made, again = (part(images, torch.Generator().manual_seed(seed)) for _ in range(2))
    assert made.shape == images.shape
    assert -1e-6 <= float(made.min()) <= float(made.max()) <= 1 + 1e-6
    assert torch.equal(made, again)
    assert torch.equal(images, kept)


def test_a_picture_of_the_canvas_is_what_rog_shows() -> None:
    """Without noise: an enlarged small picture, which shrinking gives back where interpolation is exact (factor 1)."""
    images = pictures()
    part = Shrink(factors=(4,), weights=(1,), modes=("bicubic",), sigma=0)
    answers = {tuple(part(images, torch.Generator().manual_seed(s)).flatten().tolist()) for s in range(20)}
    expected = set()
    for antialias in (False, True):
        small = F.interpolate(images, (4, 4), mode="bicubic", antialias=antialias)
        expected.add(tuple(F.interpolate(small, (16, 16), mode="bicubic").clamp(0, 1).flatten().tolist()))
    assert answers == expected
    untouched = Shrink(factors=(1,), weights=(1,), modes=("nearest",), sigma=0)
    torch.testing.assert_close(untouched(images, torch.Generator()), images)


def test_noise_has_the_strength_it_says() -> None:
    """U(0, σ) each: variance σ²/3 over many pictures. Mid-grey keeps clear of the clamp."""
    grey = torch.full((2000, 3, 8, 8), 0.5)
    made = Noise(sigma=0.1)(grey, torch.Generator().manual_seed(0)) - 0.5
    each = made.flatten(1).std(1)
    assert float(made.square().mean()) == pytest.approx(0.1**2 / 3, rel=0.06)
    assert float(each.max()) < 0.1 * 1.3
    assert float(each.min()) < 0.005


def test_blur_is_the_gaussian_of_scipy() -> None:
    images = pictures(2)
    made = Blur(least=0.7, most=0.7)(images, torch.Generator())
    expected = gaussian_filter(images.numpy(), (0, 0, 0.7, 0.7), mode="nearest", radius=(0, 0, 3, 3))
    torch.testing.assert_close(made, torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
