"""Batches by label against their definitions."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.batches import few_class_batches, random_batches

from leakgauge.errors import InputError

LABELS = torch.tensor([2, 0, 1, 0, 2, 1, 1, 0, 2, 3, 3])


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_random_batches_are_disjoint_and_drawn() -> None:
    made = random_batches(LABELS, 3, 3, fresh())
    flat = [i for part in made for i in part]
    assert [len(part) for part in made] == [3, 3, 3]
    assert len(set(flat)) == 9
    assert set(flat) <= set(range(11))
    assert made == random_batches(LABELS, 3, 3, fresh())
    assert made != random_batches(LABELS, 3, 3, fresh(1))
    with pytest.raises(InputError, match="11 examples"):
        random_batches(LABELS, 4, 3, fresh())


def test_random_batches_are_uniform() -> None:
    hits = torch.zeros(11)
    g = fresh()
    for _ in range(1100):
        hits[random_batches(LABELS, 1, 1, g)[0]] += 1
    assert float((hits - 100).abs().max()) < 45


def test_few_classes_are_few() -> None:
    g = fresh()
    seen = set()
    for part in few_class_batches(LABELS, 2, 4, 60, g):
        classes = set(LABELS[part].tolist())
        assert len(set(part)) == 4
        assert len(classes) <= 2
        seen |= {tuple(sorted(classes))} if len(classes) == 2 else set()
    assert len(seen) == 6
    with pytest.raises(InputError, match="5 of 4"):
        few_class_batches(LABELS, 5, 4, 1, g)
    with pytest.raises(InputError, match="the classes drawn have"):
        few_class_batches(LABELS, 1, 4, 1, g)


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(InputError):
        random_batches(LABELS, 0, 1, fresh())
