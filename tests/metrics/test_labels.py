"""Multiset scores and their exact baselines."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.errors import InputError
from leakgauge.metrics import label_f1, label_f1_by_prior

labels_of = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def as_tensor(labels: list[int]) -> torch.Tensor:
    return torch.tensor(labels, dtype=torch.int64)


@given(guessed=labels_of, true=labels_of, shift=st.randoms())
def test_f1_is_precision_and_recall_of_counts(guessed: list[int], true: list[int], shift: object) -> None:
    overlap = sum((Counter(guessed) & Counter(true)).values())
    precision, recall = overlap / len(guessed), overlap / len(true)
    expected = 2 * precision * recall / (precision + recall) if overlap else 0.0
    assert label_f1(as_tensor(guessed), as_tensor(true), 4) == pytest.approx(expected)
    assert label_f1(as_tensor(guessed[::-1]), as_tensor(true), 4) == pytest.approx(expected)


def test_known_defects() -> None:
    """Repeated labels read as distinct, and a sign error that answers the exact complement."""
    assert label_f1(as_tensor([3, 7, 5, 0]), as_tensor([3, 3, 3, 7]), 10) == 0.5
    complement, true = as_tensor([0, 1, 3, 5, 7, 9]), as_tensor([2, 4, 6, 8])
    assert label_f1(complement, true, 10) == 0.0
    assert label_f1(None, true, 10) == 0.0


@given(true=st.lists(st.integers(0, 2), min_size=1, max_size=4), guesses=st.integers(0, 4))
def test_baselines_agree_with_enumeration(true: list[int], guesses: int) -> None:
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    f1 = 0.0
    for guess in product(range(3), repeat=guesses):
        probability = float(prior[list(guess)].prod())
        f1 += probability * label_f1(as_tensor(list(guess)), as_tensor(true), 3)
    assert label_f1_by_prior(as_tensor(true), prior, guesses) == pytest.approx(f1)


def test_guesses_reach_69_percent_on_an_even_batch_of_16_in_10_classes() -> None:
    """A score of this size is no finding: it needs the baseline of its own batch beside it."""
    labels = torch.arange(16) % 10
    once = 1 - 0.9**16
    twice = once - 16 * 0.1 * 0.9**15
    expected = (10 * once + 6 * twice) / 16
    assert label_f1_by_prior(labels, torch.full((10,), 0.1)) == pytest.approx(expected, abs=1e-6)
    assert expected == pytest.approx(0.69, abs=0.005)


def test_soft_labels_count_as_their_largest_class() -> None:
    assert label_f1(as_tensor([1, 0]), torch.tensor([[0.1, 0.9], [0.8, 0.2]]), 2) == 1.0


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="prior"):
        label_f1_by_prior(as_tensor([0]), torch.tensor([0.5, 0.2]))
    for outside in ([4], [-1]):
        with pytest.raises(InputError, match="labels"):
            label_f1(as_tensor(outside), as_tensor([0]), 4)
