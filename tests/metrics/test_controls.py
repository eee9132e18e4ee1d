"""Null baselines."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.errors import InputError
from leakgauge.metrics import MSE, mean_image, nearest_public


def rand(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, 3, 5, 5, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 99))
def test_mean_image_is_the_best_constant_guess(seed: int) -> None:
    public = rand(7, seed)
    guess = mean_image(public, 7)
    other = guess + 0.01 * rand(1, seed + 1)
    assert float(MSE()(guess, public).mean()) < float(MSE()(other, public).mean())
    assert torch.equal(guess[0], guess[6])


@given(seed=st.integers(0, 99))
def test_nearest_public_beats_every_single_public_image(seed: int) -> None:
    truth, public = rand(3, seed), rand(6, seed + 1)
    bar = MSE()(nearest_public(truth, public), truth)
    for image in public:
        assert bool((bar <= MSE()(image.expand_as(truth), truth)).all())


def test_works_for_recordings_and_needs_public_data() -> None:
    ecg = torch.rand(4, 12, 30)
    assert mean_image(ecg, 2).shape == (2, 12, 30)
    assert torch.equal(nearest_public(ecg[2:], ecg), ecg[2:])
    for refused in (lambda: mean_image(ecg[:0], 1), lambda: nearest_public(ecg, ecg[:0])):
        with pytest.raises(InputError, match="public"):
            refused()
