"""Degradations: ranges, strengths, and what they must be on hand-made pictures."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reproduce.denoiser.degradations import Blur, Noise, Shrink, Shuffled, shrunk
from scipy.ndimage import gaussian_filter
from torch import Tensor

from leakgauge.errors import InputError


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


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_a_flat_picture_shrinks_to_itself(mode: str) -> None:
    flat = torch.full((1, 3, 16, 12), 0.3)
    torch.testing.assert_close(shrunk(flat, 4, mode), torch.full((1, 3, 4, 3), 0.3))


def test_factors_come_as_often_as_their_weights() -> None:
    """Noise-free pictures shrunk by 4, 2 and 1 keep fewer and fewer of their 256 values."""
    part = Shrink(factors=(4, 1), weights=(0.75, 0.25), modes=("nearest",), sigma=0)
    image, generator = pictures(1), torch.Generator().manual_seed(0)
    whole = sum(torch.allclose(part(image, generator), image) for _ in range(400))
    # Binomial(400, .25): standard deviation 8.7.
    assert abs(whole - 100) < 4 * 8.7


def test_noise_has_the_strength_it_says() -> None:
    """U(0, σ) each: variance σ²/3 over many pictures. Mid-grey keeps clear of the clamp."""
    grey = torch.full((2000, 3, 8, 8), 0.5)
    made = Noise(sigma=0.1)(grey, torch.Generator().manual_seed(0)) - 0.5
    each = made.flatten(1).std(1)
    assert float(made.square().mean()) == pytest.approx(0.1**2 / 3, rel=0.06)
    assert float(each.max()) < 0.1 * 1.3
    assert float(each.min()) < 0.005


def test_noise_of_the_canvas_is_made_at_the_small_size() -> None:
    """Its spectrum ends where the small picture's does: shrinking and enlarging again leaves most of it."""
    grey = torch.full((200, 3, 32, 32), 0.5)
    rough = Shrink(factors=(4,), weights=(1,), sigma=0.1)(grey, torch.Generator().manual_seed(0)) - 0.5
    smooth = F.interpolate(shrunk(rough, 4), (32, 32), mode="bicubic")
    fine = Noise(sigma=0.1)(grey, torch.Generator().manual_seed(0)) - 0.5
    fine_smooth = F.interpolate(shrunk(fine, 4), (32, 32), mode="bicubic")
    assert float((rough - smooth).square().sum() / rough.square().sum()) < 0.35
    assert float((fine - fine_smooth).square().sum() / fine.square().sum()) > 0.85


def test_blur_is_the_gaussian_of_scipy() -> None:
    images = pictures(2)
    made = Blur(least=0.7, most=0.7)(images, torch.Generator())
    expected = gaussian_filter(images.numpy(), (0, 0, 0.7, 0.7), mode="nearest", radius=(0, 0, 3, 3))
    torch.testing.assert_close(made, torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


class Recorder:
    """A degradation that only says that its turn came, and for how many pictures."""

    def __init__(self, name: str, calls: list[tuple[str, int]]) -> None:
        self.name, self.calls = name, calls

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        self.calls.append((self.name, len(images)))
        return images


def test_all_orders_come_as_often_and_each_part_once_a_group() -> None:
    calls: list[tuple[str, int]] = []
    part = Shuffled(parts=tuple(Recorder(name, calls) for name in "abc"), group=2)
    part(pictures(1200, 1), torch.Generator().manual_seed(0))
    orders = Counter("".join(name for name, _ in calls[k : k + 3]) for k in range(0, len(calls), 3))
    assert sum(orders.values()) == 600
    assert set(orders) == {"abc", "acb", "bac", "bca", "cab", "cba"}
    # Binomial(600, 1/6): standard deviation 9.1.
    assert all(abs(count - 100) < 4 * math.sqrt(600 * 5 / 36) for count in orders.values())
    assert {count for _, count in calls} == {2}


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: Shrink(factors=(4,), weights=(0.5, 0.5)), "factors"),
        (lambda: Shrink(factors=(0, 1, 2)), "factors"),
        (lambda: Shrink(weights=(0, 0, 0)), "weights"),
        (lambda: Shrink(modes=("lanczos",)), "modes"),
        (lambda: Shrink(sigma=-1), "sigma"),
        (lambda: Noise(sigma=-0.1), "sigma"),
        (lambda: Blur(least=0), "least"),
        (lambda: Blur(least=2, most=1), "least"),
        (lambda: Shuffled(parts=()), "parts"),
        (lambda: Shuffled(group=0), "group"),
    ],
)
def test_settings_are_checked(build, word: str) -> None:
    with pytest.raises(InputError, match=word):
        build()
