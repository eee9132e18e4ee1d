"""Examples in the span of a layer's rows, told apart by what is known behind it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge.attacks.features.span import RowSpan
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import GaussianNoise
from leakgauge.defenses.noise import Absolute
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task

SPEC = DataSpec(shape=(3, 4, 4), classes=5, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


def mixed_rows(seed: int, *, bias: bool = True) -> Task:
    """A norm mixes the signals of all units, so that no row of the first layer is one example's."""
    torch.manual_seed(seed)
    layers = nn.Flatten(), nn.Linear(48, 64, bias=bias), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 5)
    return Task.of(nn.Sequential(*layers), SPEC)


def drawn(count: int, seed: int) -> Batch:
    inputs = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Batch(inputs, torch.arange(count) % 5)


@pytest.mark.parametrize(("count", "seed"), [(2, 0), (2, 1), (3, 2)])
def test_what_no_row_shows_is_read_where_the_head_shows_its_features(count: int, seed: int) -> None:
    task, batch = mixed_rows(seed), drawn(count, seed)
    update = client_update(task, FedSGD(), batch, Draws(seed))
    found = lg.attack(task, update, knows=Knowledge(example_count=count), using=lg.attacks.recipes.Features())
    assert found.status is lg.Status.EXACT
    assert found.inputs is not None
    assert float(torch.cdist(found.inputs.flatten(1), batch.inputs.flatten(1)).amin(0).max()) < 1e-3


def test_what_a_norm_hides_is_not_certified() -> None:
    """Without a bias the features are those of any multiple of an example."""
    task, batch = mixed_rows(0, bias=False), drawn(2, 0)
    update = client_update(task, FedSGD(), batch, Draws(0))
    found = lg.attack(task, update, knows=Knowledge(example_count=2), using=lg.attacks.recipes.Features())
    assert found.certified is None or not found.certified.any()


@pytest.mark.parametrize("bias", [True, False])
def test_the_span_holds_the_examples_and_noise_leaves_none(bias: bool) -> None:
    task, batch, generator = mixed_rows(3, bias=bias), drawn(3, 3), torch.Generator().manual_seed(0)
    update = client_update(task, FedSGD(), batch, Draws(0))
    span = RowSpan.of(Observation(task, update, Knowledge(example_count=3)), 3, generator)
    assert span is not None
    assert len(span.directions) == (2 if bias else 3)
    off = SPEC.normalise(batch.inputs).flatten(1).double() - span.base
    inside = torch.linalg.lstsq(span.directions.T, off.T).solution
    assert torch.allclose(span.examples(inside.T, SPEC), batch.inputs.double(), atol=1e-4)
    noisy = client_update(task, FedSGD(), batch, Draws(0), defense=GaussianNoise(scale=Absolute(sigma=1e-3)))
    assert RowSpan.of(Observation(task, noisy, Knowledge(example_count=3)), 3, generator) is None
