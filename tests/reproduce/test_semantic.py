"""Jaccard of tags, by hand; and the default tagger on photos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from reproduce.metrics import Jaccard, TopLabels, cifar10_labels
from reproduce.metrics.semantic import Tagger
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


def test_the_data_range_is_brought_to_zero_and_one() -> None:
    x = flat((1, 0, 1), (1, 0, 0))
    scaled = Jaccard(tagger=bright_or_dark, low=-1.0, data_range=2.0)
    assert scaled(2 * x - 1, 2 * x.flip(0) - 1).tolist() == Jaccard(tagger=bright_or_dark)(x, x.flip(0)).tolist()


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


def test_a_tagger_that_gives_too_few_is_refused() -> None:
    with pytest.raises(InputError, match="tagger"):
        Jaccard(tagger=lambda images: bright_or_dark(images[:1]))(
            flat((1, 0, 0), (0, 0, 1)), flat((1, 0, 0), (0, 0, 1))
        )


@pytest.mark.parametrize("tagger", [lambda images: images.mean((2, 3)), lambda images: [["red"]] * len(images)])
def test_a_tagger_that_answers_with_something_else_is_refused(tagger: Tagger) -> None:
    with pytest.raises(InputError, match="sets of tags"):
        Jaccard(tagger=tagger)(flat((1, 0, 0)), flat((1, 0, 0)))


def test_a_classifier_of_another_shape_is_refused_and_colours_are_fitted() -> None:
    wide = TopLabels(module=nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), data=TINY, labels=("r", "g", "b"))
    with pytest.raises(InputError, match="does not take images") as error:
        wide(flat((1, 0, 0)))
    assert "\n" not in str(error.value)
    seen: list[Tensor] = []

    class Keeps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return x.new_zeros(len(x), 2)

    grey = TopLabels(module=Keeps(), data=DataSpec((1, 4, 4), 2), labels=("a", "b"), top=1)
    grey(flat((0.3, 0.6, 0.9)))
    assert seen[0].shape == (1, 1, 4, 4)
    assert float(seen[0].mean()) == pytest.approx(0.6)
    with pytest.raises(InputError, match="answers with list"):
        TopLabels(module=Listing(), data=TINY, labels=("a",), top=1)(flat((1, 0, 0)))


class Listing(nn.Module):
    """No tensor."""

    def forward(self, x: Tensor) -> list[float]:
        return x.mean((1, 2, 3)).tolist()


def test_it_is_for_images() -> None:
    assert Jaccard().defined_for(DataSpec((3, 32, 32), 10))
    assert not Jaccard().defined_for(DataSpec((12,), 10))
    assert Jaccard()(torch.zeros(0, 3, 32, 32), torch.zeros(0, 3, 32, 32)).tolist() == []


def test_the_default_tagger_tells_noisy_copies_from_other_photos(shared: Path) -> None:
    """And its failure: an unrelated photo scores far above 0."""
    x = Parquet(path=str(shared / "data" / "cifar10-test.parquet")).read(range(100)).inputs
    metric = Jaccard(tagger=cifar10_labels())
    noisy = x + 0.02 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert float(metric(x, x).min()) == 1
    near, other = float(metric(noisy, x).mean()), float(metric(x.roll(1, 0), x).mean())
    assert near > 0.6
    assert 0.02 < other < near / 2
