"""Assignment of reads to truths, and null baselines."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.data import open_source
from leakgauge.errors import InputError
from leakgauge.metrics import MSE, SSIM, assign, mean_image, nearest_public
from leakgauge.metrics.likeness import likeness, pairwise_mse


def images(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 99), n=st.integers(1, 5))
def test_least_total_error_without_labels(seed: int, n: int) -> None:
    x, x_hat = images(n, seed), images(n, seed + 1000)
    cost = pairwise_mse(x_hat, x)
    best = min(float(sum(cost[j, i] for i, j in enumerate(p))) for p in permutations(range(n)))
    slots = assign(x_hat, x).slots
    assert sorted(slots) == list(range(n))
    assert float(sum(cost[j, i] for i, j in enumerate(slots))) == pytest.approx(best)


@given(
    seed=st.integers(0, 99),
    labels=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    guessed=st.lists(st.integers(0, 2), min_size=0, max_size=6),
)
def test_equal_labels_come_first_and_no_slot_serves_twice(seed: int, labels: list[int], guessed: list[int]) -> None:
    x, x_hat = images(len(labels), seed), images(len(guessed), seed + 1000)
    got = assign(x_hat, x, labels_hat=torch.tensor(guessed, dtype=torch.int64), labels=torch.tensor(labels))
    used = [slot for slot in got.slots if slot is not None]
    assert len(used) == len(set(used)) == min(len(labels), len(guessed))
    agreeing = sum(slot is not None and guessed[slot] == label for slot, label in zip(got.slots, labels, strict=True))
    assert agreeing == sum(min(labels.count(c), guessed.count(c)) for c in range(3))
    assert torch.equal(got.take(x_hat), x_hat[used])
    assert len(got.matched) == len(used)


@given(order=st.permutations(range(6)))
def test_undoes_a_permutation(order: list[int]) -> None:
    x = images(6, 0)
    assert torch.equal(assign(x[order], x).take(x[order]), x)


def test_labels_outrank_distance() -> None:
    x, near = torch.tensor([[0.0], [1.0]]), torch.tensor([[0.1], [0.9]])
    assert assign(near, x).slots == (0, 1)
    assert assign(near, x, labels_hat=torch.tensor([5, 3]), labels=torch.tensor([3, 5])).slots == (1, 0)
    soft = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert assign(near, x, labels_hat=torch.tensor([0, 1]), labels=soft).slots == (1, 0)


def test_what_is_exact_is_not_given_up_for_one_that_is_far_off() -> None:
    """The least total error would pair the second with the third picture, and call neither read."""
    truth = torch.tensor([[0.0, 0.0], [0.0, 1.0], [0.4, 0.5]])
    found = torch.tensor([[0.0, 0.0], [0.4, 0.5], [0.9, 0.2]])
    assert assign(found, truth).slots == (0, 2, 1)
    labels = torch.tensor([0, 1, 2])
    assert assign(found, truth, labels_hat=labels, labels=labels).slots == (0, 2, 1)


@given(seed=st.integers(0, 99), low=st.integers(-100, 100), log=st.integers(-3, 3), labelled=st.booleans())
def test_units_of_the_data_change_no_pair(seed: int, low: int, log: int, labelled: bool) -> None:
    """Ages from 0 to 100 as well as shares of one."""
    span, x = 10.0**log, images(4, seed).double()
    x_hat = torch.cat([x[2:3], x[3:] + 0.05, images(2, seed + 1000)])  # one exact, one near, two of others
    of = {"labels_hat": torch.tensor([2, 0, 1, 1]), "labels": torch.arange(4) % 3} if labelled else {}
    scaled = assign(low + span * x_hat, low + span * x, data_range=span, low=low, **of)
    assert scaled.slots == assign(x_hat, x, **of).slots


def test_missing_and_spare_reconstructions() -> None:
    x = images(3, 0)
    assert assign(x[2:], x).slots == (None, None, 0)
    assert assign(x[:0], x).slots == (None, None, None)
    assert assign(x, x[1:2]).slots == (1,)
    with pytest.raises(InputError, match="shape"):
        assign(torch.zeros(1, 3), x)
    with pytest.raises(InputError, match="one an example"):
        assign(x, x, labels_hat=torch.tensor([0]), labels=torch.tensor([0, 1, 2]))


def test_constant_grey_gains_nothing_here_but_much_from_best_match(shared: Path) -> None:
    """Scored against whichever true image fits best, grey reaches .39–.47 SSIM on 128 images; one to one, .12–.17."""
    x = open_source(f"parquet:{shared}/data/cifar10-test.parquet").read(range(128)).inputs
    grey = torch.full_like(x, 0.5)
    aligned = SSIM()(assign(grey, x).take(grey), x)
    best_match = SSIM()(grey[:1].expand_as(x), x).max()
    assert float(best_match) > 0.38
    assert float(aligned.mean()) < 0.2


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


@pytest.mark.parametrize("side", [1, 8])
def test_pictures_of_another_size_are_not_stretched_until_they_are_alike(side: int) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        likeness(torch.rand(2, 3, side, side), torch.rand(2, 3, 16, 16))
