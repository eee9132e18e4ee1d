"""Examples in the span of a layer's rows, told apart by what a layer further in says of its inputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import leakgauge as lg
from leakgauge.attacks.features.span import HiddenSpan, RowSpan
from leakgauge.attacks.matching.problem import Meter
from leakgauge.attacks.recipes import SpanFit
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.defenses import Defense, GaussianNoise, NoDefense, Precode
from leakgauge.defenses.dp import Absolute
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction
from leakgauge.task import Batch, DataSpec, Task

SPEC = DataSpec(shape=(3, 4, 4), classes=10, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.SiLU)


def network(*behind: nn.Module, seed: int = 0, bias: bool = True, last: int = 64) -> Task:
    torch.manual_seed(seed)
    first = nn.Flatten(), nn.Linear(48, 64, bias=bias)
    return Task.of(nn.Sequential(*first, *behind, nn.Linear(last, 10)).double(), SPEC)


def drawn(count: int, seed: int) -> Batch:
    inputs = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Batch(inputs, torch.arange(count) % 10)


PLAIN, BARE = FedSGD(), NoDefense()


def read(
    task: Task, batch: Batch, client: Protocol = PLAIN, defense: Defense = BARE, *, told: bool = True
) -> Reconstruction:
    update = client_update(task, client, batch, Draws(3), defense=defense)
    knows = Knowledge(example_count=len(batch), local_training=client if told else None, defense=defense)
    return lg.attack(defense.on_task(task), update, knows=knows, using=SpanFit())


def decibels(found: Reconstruction, batch: Batch) -> list[float]:
    """Of each found example, to the nearest of the client's."""
    assert found.inputs is not None
    truth = batch.inputs.double()
    return [float(PSNR()(x.double().expand_as(truth), truth).max()) for x in found.inputs]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_batch_is_read_whatever_the_activation(activation: type[nn.Module]) -> None:
    task, batch = network(activation()), drawn(6, 1)
    found = read(task, batch)
    assert found.status is lg.Status.EXACT
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(batch.labels.tolist())
    assert min(decibels(found, batch)) > 60


@pytest.mark.parametrize("count", [2, 5])
def test_a_norm_that_mixes_all_rows_hides_nothing(count: int) -> None:
    batch = drawn(count, 2)
    assert read(network(nn.LayerNorm(64), nn.ReLU()), batch).status is lg.Status.EXACT


def test_more_examples_than_classes_are_read_where_a_hidden_layer_is_behind() -> None:
    task, batch = network(nn.ReLU(), nn.Linear(64, 40), nn.GELU(), last=40), drawn(14, 3)
    found = read(task, batch)
    assert len(decibels(found, batch)) >= 12
    assert min(decibels(found, batch)) > 60


@pytest.mark.parametrize("told", [True, False])
def test_several_local_steps_are_one_update_more(told: bool) -> None:
    """Two steps of three examples put six tensors into the layer behind, the first three at the broadcast weights."""
    task, batch = network(nn.GELU(), nn.Linear(64, 40), nn.ReLU(), last=40), drawn(3, 4)
    found = read(task, batch, FedAvg(lr=0.05, epochs=2), told=told)
    near = decibels(found, batch) if found.inputs is not None else []
    assert len(near) == 3 if told else not near or min(near) > 60
    assert not told or min(near) > 60


def test_draws_behind_the_layer_hinder_the_proof_alone() -> None:
    batch = drawn(4, 5)
    found = read(network(nn.ReLU()), batch, defense=Precode(size=16))
    assert found.certified is None or not found.certified.any()
    assert len(decibels(found, batch)) == 4
    assert min(decibels(found, batch)) > 60


def test_what_a_norm_hides_is_not_certified() -> None:
    """Without a bias the norm's input is that of any multiple of an example."""
    found = read(network(nn.LayerNorm(64), nn.ReLU(), bias=False), drawn(2, 0))
    assert found.certified is None or not found.certified.any()


def test_mixtures_that_drive_the_same_units_do_not_stand_alone() -> None:
    """With units that are always on the layer is linear, and every mixture of examples fits as well."""
    task, batch = network(nn.ReLU()), drawn(3, 6)
    with torch.no_grad():
        task.module[1].bias += 100.0  # type: ignore[union-attr, operator]
    found = read(task, batch)
    assert found.inputs is None or not len(found.inputs) or found.certified is None or not found.certified.any()


def test_batch_statistics_tell_no_example_by_itself() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).double()
    batch = drawn(3, 7)
    for mode, tells in ((lg.task.Mode.EVAL, True), (lg.task.Mode.TRAIN, False)):
        task = Task.of(net, SPEC, mode=mode)
        update = client_update(task, FedSGD(), batch, Draws(0))
        seen = Observation(task, update, Knowledge(example_count=3))
        drawn_ones = torch.rand(5, 3, 4, 4).double()
        assert any(layer.tells(drawn_ones) for layer in HiddenSpan.behind(seen, "1.weight")) is tells


@pytest.mark.parametrize("bias", [True, False])
def test_the_span_holds_the_examples_and_noise_leaves_none(bias: bool) -> None:
    task, batch, generator = network(nn.ReLU(), seed=3, bias=bias), drawn(3, 3), torch.Generator().manual_seed(0)
    update = client_update(task, FedSGD(), batch, Draws(0))
    span = RowSpan.of(Observation(task, update, Knowledge(example_count=3)), 3, generator)
    assert span is not None
    assert len(span.directions) == (2 if bias else 3)
    off = SPEC.normalise(batch.inputs).flatten(1).double() - span.base
    inside = torch.linalg.lstsq(span.directions.T, off.T).solution
    assert torch.allclose(span.examples(inside.T, SPEC), batch.inputs.double(), atol=1e-4)
    noisy = client_update(task, FedSGD(), batch, Draws(0), defense=GaussianNoise(scale=Absolute(sigma=1e-3)))
    assert RowSpan.of(Observation(task, noisy, Knowledge(example_count=3)), 3, generator) is None


@pytest.mark.parametrize("activation", [nn.GELU, nn.Sigmoid])
@pytest.mark.parametrize("seed", range(4))
def test_a_regression_is_read_where_no_unit_ever_switches_off(activation: type[nn.Module], seed: int) -> None:
    """The rows of such a layer lie close together and far from the examples; no search ends twice at the same one."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(24, 64), activation(), nn.Linear(64, 32), activation(), nn.Linear(32, 1)).double()
    parts = {"x": lg.Numbers(24), "y": lg.Values()}
    task = lg.Task.of_step(net, lambda m, b: nn.functional.mse_loss(m(b["x"])[:, 0], b["y"]), batch=parts)
    x, y = torch.rand(4, 24, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    update = lg.clients.client_update(task, FedSGD(), {"x": x, "y": y}, Draws(0))
    found = lg.attack(task, update, knows=Knowledge(example_count=4), budget=lg.Budget(gradient_evaluations=200))
    assert found.inputs is not None
    assert float(torch.cdist(found.inputs.flatten(1).double(), x).amin(0).max()) < 1e-4
    assert found.status is lg.Status.EXACT


def test_searches_that_start_at_known_examples_end() -> None:
    task, batch, generator = network(nn.GELU()), drawn(4, 8), torch.Generator().manual_seed(0)
    update = client_update(task, FedSGD(), batch, Draws(3))
    seen = Observation(task, update, Knowledge(example_count=4))
    span = RowSpan.of(seen, 4, generator)
    assert span is not None
    off = SPEC.normalise(batch.inputs.double()).flatten(1) - span.base
    inside = torch.linalg.lstsq(span.directions.T, off.T).solution.T
    found = replace(span, rows=inside[:2].repeat(40, 1)).fitted(
        HiddenSpan.behind(seen, "1.weight"), SPEC, 4, Meter(lg.Budget()), generator
    )
    assert len(found) == 4
    assert float(torch.cdist(batch.inputs.double().flatten(1), found.flatten(1)).amin(1).max()) < 1e-4
