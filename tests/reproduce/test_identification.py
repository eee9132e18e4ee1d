"""Who is singled out, and who must not be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduce.metrics.identification import identify

from leakgauge.data import Samples, gallery
from leakgauge.errors import InputError
from leakgauge.metrics import assign
from leakgauge.metrics.likeness import pairwise_mse, residuals


def rand(n: int, seed: int) -> torch.Tensor:
    return torch.rand(n, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


@given(seed=st.integers(0, 99))
def test_rank_agrees_with_counting(seed: int) -> None:
    x, others = rand(3, seed), rand(20, seed + 100)
    x_hat = (x + 0.6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))).clamp(0, 1)
    assignment = assign(x_hat, x)
    found = identify(x_hat, x, assignment, others)
    for i, slot in enumerate(assignment.slots):
        assert slot is not None
        to_truth = (x_hat[slot] - x[i]).double().square().mean()
        nearer = sum(bool((x_hat[slot] - g).double().square().mean() <= to_truth) for g in others)
        assert int(found.ranks[i]) == 1 + nearer


def test_the_truth_itself_is_identified_among_crops_of_photos(generator: torch.Generator) -> None:
    source = Samples(size=16)
    x, others = source.read([0, 1]).inputs, gallery(source, [0, 1], 100, generator)
    found = identify(x.flip(0), x, assign(x.flip(0), x), others)
    assert found.ranks.tolist() == [1, 1]
    assert (found.rate, found.chance) == (1.0, 1 / 101)


def test_ties_identify_nobody() -> None:
    """A grey guess is equally far from every black-and-white pattern; so is a copy of the truth in the gallery."""
    patterns = (rand(11, 0) > 0.5).float()
    grey = torch.full_like(patterns[:1], 0.5)
    x = patterns[:1]
    assert identify(grey, x, assign(grey, x), patterns[1:]).ranks.tolist() == [11]
    assert identify(x, x, assign(x, x), patterns).ranks.tolist() == [2]


def test_grey_is_at_chance() -> None:
    """Over exchangeable pictures a constant guess is nearest about once in eleven."""
    pictures = rand(1100, 3) * torch.rand(1100, 1, 1, 1, generator=torch.Generator().manual_seed(4))
    hits = 0
    for group in pictures.split(11):
        grey = torch.full_like(group[:1], 0.5)
        hits += int(identify(grey, group[:1], assign(grey, group[:1]), group[1:]).identified)
    assert 2 <= hits <= 18  # mean 9.1, standard deviation 2.9


def test_without_a_reconstruction_the_rank_is_last() -> None:
    x, others = rand(2, 0), rand(5, 1)
    found = identify(x[1:], x, assign(x[1:], x), others)
    assert found.ranks.tolist() == [6, 1]
    assert found.identified.tolist() == [False, True]
    nobody = identify(x[:0], x, assign(x[:0], x), others)
    assert (nobody.ranks.tolist(), nobody.rate) == ([6, 6], 0.0)


def test_an_empty_gallery_is_refused() -> None:
    x = rand(1, 0)
    with pytest.raises(InputError, match="empty"):
        identify(x, x, assign(x, x), x[:0])


def test_pictures_are_compared_in_three_ways_and_records_in_one() -> None:
    pictures = Samples(size=16).read([0, 1]).inputs
    ways = residuals(pictures, pictures)
    assert len(ways) == 3
    for way in ways:
        assert float(way[0, 1]) > 2 * float(way.diagonal().max()), "a copy is the nearest"
    records = torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    (only,) = residuals(records, records.flip(0))
    torch.testing.assert_close(only, pairwise_mse(records, records.flip(0)))
