"""Learned inversion: sketches keep inner products, and the network reads what an update says."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cases import SPEC, task
from leakgauge.attacks.recipes.learned import LearnedInversion, Sketch, _sent
from leakgauge.clients import FedAvg, FedSGD, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import Defense, TopK
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR, mean_image
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch

QUICK = LearnedInversion(pairs=300, buckets=256, hidden=128, steps=300)


def patches(n: int, seed: int) -> torch.Tensor:
    """Smooth pictures: a family that can be learnt from a few hundred."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand((n, 3, 2, 2), generator=g)
    return torch.nn.functional.interpolate(coarse, SPEC.shape[1:], mode="bilinear")


def seen(secret: torch.Tensor, defense: Defense | None = None) -> Observation:
    labels = torch.arange(len(secret)) % SPEC.classes
    t = task("smooth", dtype=torch.float32)
    update = client_update(t, FedSGD(), Batch(secret, labels), Draws(3), defense=defense)
    known = Knowledge(
        labels=labels,
        example_count=len(secret),
        local_training=FedSGD(),
        defense=defense,
        public_data=patches(200, 1),
    )
    return Observation(t, update, known)


@pytest.mark.parametrize("defense", [None, TopK(keep=0.3)], ids=repr)
def test_it_is_far_better_than_the_mean_picture(defense: Defense | None) -> None:
    gains = []
    for seed in (2, 3, 4):
        secret = patches(1, seed)
        found = QUICK.reconstruct(seen(secret, defense), torch.Generator().manual_seed(0)).inputs
        assert found is not None
        gains.append(float(PSNR()(found, secret) - PSNR()(mean_image(patches(200, 1), 1), secret)))
    assert sum(gains) / 3 > 3


def test_an_update_that_says_nothing_gets_the_mean_picture() -> None:
    observation = seen(patches(1, 2))
    silent = dataclasses.replace(
        observation,
        update=dataclasses.replace(
            observation.update, tensors={k: torch.zeros_like(v) for k, v in observation.update.tensors.items()}
        ),
        knowledge=dataclasses.replace(observation.knowledge, defense=TopK(keep=1e-9)),
    )
    found = QUICK.reconstruct(silent, torch.Generator().manual_seed(0)).inputs
    assert found is not None
    # One entry of each tensor is sent in training and none here; far from any photo, near the mean.
    assert float((found - patches(200, 1).mean(0)).abs().mean()) < 0.25


def test_same_seed_same_answer_and_the_cost_is_that_of_the_pairs() -> None:
    observation = seen(patches(2, 2))
    first, second = (QUICK.reconstruct(observation, torch.Generator().manual_seed(5)) for _ in range(2))
    assert first.inputs is not None
    assert second.inputs is not None
    assert torch.equal(first.inputs, second.inputs)
    assert first.inputs.shape == (2, *SPEC.shape)
    assert first.cost.gradient_evaluations == 300
    short = QUICK.reconstruct(observation, torch.Generator().manual_seed(5), budget=Budget(gradient_evaluations=40))
    assert short.cost.gradient_evaluations == 40
    assert short.status is Status.OUT_OF_BUDGET


@pytest.mark.parametrize(
    ("missing", "word"), [("labels", "labels"), ("public_data", "public_data"), ("local_training", "local_training")]
)
def test_it_says_what_it_lacks(missing: str, word: str) -> None:
    observation = seen(patches(1, 2))
    if missing == "local_training":
        update = client_update(observation.task, FedAvg(epochs=2), Batch(patches(1, 2), torch.tensor([0])), Draws(0))
        observation = dataclasses.replace(observation, update=update)
    blind = dataclasses.replace(observation, knowledge=dataclasses.replace(observation.knowledge, **{missing: None}))
    found = QUICK.reconstruct(blind, torch.Generator().manual_seed(0))
    assert found.status is Status.NOT_APPLICABLE
    assert word in found.message


def test_bad_settings_name_their_field() -> None:
    for field, value in (("pairs", 3), ("buckets", 0), ("hidden", -1), ("steps", 0), ("lr", 0.0)):
        with pytest.raises(InputError, match=field):
            LearnedInversion(**{field: value})


def test_a_sketch_is_linear_and_keeps_inner_products() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = ({"w": torch.randn(4000, generator=g), "b": torch.randn(5, generator=g)} for _ in range(2))
    sketch = Sketch.of(a, 64, g)
    both = {k: 2 * a[k] - b[k] for k in a}
    assert torch.allclose(sketch(both), 2 * sketch(a) - sketch(b), atol=1e-4)
    assert torch.equal(sketch(a)[-5:], a["b"])
    # Unbiased: over sketches the mean of ⟨Sa, Sa⟩ is ‖a‖², with standard deviation below √(2/64)·‖a‖² each.
    square = sum(float(v.square().sum()) for v in a.values())
    norms = [float(Sketch.of(a, 64, torch.Generator().manual_seed(s))(a).square().sum()) for s in range(200)]
    assert abs(sum(norms) / 200 / square - 1) < 4 * (2 / 64 / 200) ** 0.5


def test_pairs_come_from_the_same_path_as_the_update_each_client_of_a_cohort_for_itself() -> None:
    t, labels = task("smooth"), torch.arange(4) % SPEC.classes
    batch, cohort, defense = Batch(patches(4, 2).double(), labels), SecureAggregation(cohort=2), TopK(keep=0.1)
    update = client_update(t, cohort, batch, Draws(3), defense=defense)
    observation = Observation(t, update, Knowledge(labels=labels, local_training=cohort, defense=defense))
    made = _sent(observation, batch, defense, Draws(3))
    for name, tensor in update.tensors.items():
        torch.testing.assert_close(made[name], tensor)
