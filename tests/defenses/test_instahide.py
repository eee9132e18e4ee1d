"""InstaHide: weights, partners, masks and labels."""

from __future__ import annotations

import pytest
import torch

from cases import SPEC, batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import InstaHide
from leakgauge.draws import Draws
from leakgauge.task import Batch


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def magnitudes(defense: InstaHide, n: int, seed: int = 0) -> torch.Tensor:
    """Mixing weights, seen through unit vectors as examples, masks taken off."""
    return defense.on_batch(Batch(torch.eye(n, dtype=torch.float64), torch.arange(n)), fresh(seed)).inputs.abs()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_weights_are_convex_and_bounded(k: int) -> None:
    w = InstaHide(k=k).weights(500, fresh(0))
    assert w.shape == (500, k)
    assert torch.allclose(w.sum(1), torch.ones(500).double())
    assert bool((w >= 0).all())
    assert float(w.max()) <= (0.65 if k > 1 else 1.0)


def test_k_examples_make_one_and_labels_follow() -> None:
    out = magnitudes(InstaHide(k=3), 8)
    assert torch.allclose(out.sum(1), torch.ones(8).double())
    assert int((out > 0).sum(1).max()) <= 3
    labels = InstaHide(k=3).on_batch(Batch(torch.eye(8).double(), torch.arange(8)), fresh(0)).labels
    assert torch.allclose(labels, out)


def test_the_mask_flips_signs_about_the_mean_that_the_model_subtracts() -> None:
    b = batch(3)
    out = InstaHide(k=1, centre=SPEC.mean).on_batch(b, fresh(0))
    before, after = SPEC.normalise(b.inputs), SPEC.normalise(out.inputs)
    assert torch.allclose(after.abs(), before.abs(), atol=1e-12)
    flipped = float((after * before < 0).double().mean())
    assert flipped == pytest.approx(0.5, abs=4 * 0.5 / before.numel() ** 0.5)
    assert not torch.equal(after[0] * before[0] < 0, after[1] * before[1] < 0), "one mask an example"


def test_seeded_and_fresh_in_every_round() -> None:
    t, b, defense = task("relu"), batch(4), InstaHide(centre=SPEC.mean)
    one, two, other = (client_update(t, FedSGD(), b, Draws(s), defense=defense).tensors for s in (1, 1, 2))
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precisions_are_kept(dtype: torch.dtype) -> None:
    out = InstaHide(centre=SPEC.mean).on_batch(batch(4, dtype), fresh(0))
    assert out.inputs.dtype == out.labels.dtype == dtype


def test_one_value_stands_for_all_channels() -> None:
    grey = task("relu")
    data = type(SPEC)(SPEC.shape, SPEC.classes, mean=(0.5,), std=(0.5,))
    from dataclasses import replace

    assert InstaHide(centre=(0.5, 0.5, 0.5)).on_task(replace(grey, data=data)).data == data
