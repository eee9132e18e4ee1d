"""Jaccard of tags, by hand; and the default tagger on photos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from reproduce.metrics import Jaccard, TopLabels, cifar10_labels
from torch import Tensor, nn

from leakgauge.data import Parquet
from leakgauge.errors import InputError
from leakgauge.task import DataSpec

TINY = DataSpec((3, 4, 4), 3)


def bright_or_dark(images: Tensor) -> Sequence[frozenset[str]]:
    """Two tags at most: by the red mean and by the blue mean."""
    return [
        frozenset(([] if image[0].mean() < 0.5 else ["red"]) + ([] if image[2].mean() < 0.5 else ["blue"]))
        for image in images
    ]


def flat(*colours: tuple[float, float, float]) -> Tensor:
    return torch.tensor(colours)[:, :, None, None].expand(-1, -1, 4, 4).clone()


def test_by_hand() -> None:
    x = flat((1, 0, 1), (1, 0, 1), (1, 0, 0), (0, 0, 0), (1, 0, 0))
    x_hat = flat((1, 0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0))
    # Both; one of two; none of two; both empty; empty against one.
    assert Jaccard(tagger=bright_or_dark)(x_hat, x).tolist() == [1, 0.5, 0, 1, 0]


def test_top_labels_are_the_largest_logits() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3))

    tagger = TopLabels(module=Mean(), data=TINY, labels=("r", "g", "b"), top=2)
    assert tagger(flat((0.1, 0.5, 0.9), (0.8, 0.1, 0.3))) == [{"g", "b"}, {"r", "b"}]
    # Soft-max of (1, 0, 0) is .58, .21, .21.
    sure = TopLabels(module=Mean(), data=TINY, labels=("r", "g", "b"), top=2, least=0.3)
    assert sure(flat((1, 0, 0))) == [{"r"}]
    with pytest.raises(InputError, match="tagger"):
        TopLabels(module=Mean(), data=TINY, labels=("r", "g", "b", "a"))(flat((0.1, 0.5, 0.9)))
    with pytest.raises(InputError, match="top"):
        TopLabels(module=Mean(), data=TINY, labels=("r", "g", "b"), top=4)


def test_the_default_tagger_tells_noisy_copies_from_other_photos(shared: Path) -> None:
    """And its failure: an unrelated photo scores far above 0."""
    x = Parquet(path=str(shared / "data" / "cifar10-test.parquet")).read(range(100)).inputs
    metric = Jaccard(tagger=cifar10_labels())
    noisy = x + 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert float(metric(x, x).min()) == 1
    near, other = float(metric(noisy, x).mean()), float(metric(x.roll(1, 0), x).mean())
    assert near > 0.6
    assert 0.02 < other < near / 2
