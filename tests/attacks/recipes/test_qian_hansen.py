"""The recipe of Qian & Hansen and the search in the row space, on recordings as well as pictures."""

from __future__ import annotations

import pytest
import torch
from reproduce.metrics import L1
from reproduce.qian_hansen.networks import one_hidden_layer

from leakgauge.attacks.matching import Adam, BoundedLBFGS, Decaying, JointSoftLabels
from leakgauge.attacks.recipes import RowSpace, dlg, qian_hansen
from leakgauge.attacks.recipes.row_space import SpanCanvas
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.draws import Draws
from leakgauge.metrics import assign
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Task


def task_of(units: int, data: DataSpec, activation: str = "sigmoid") -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = one_hidden_layer(classes=data.classes, shape=data.shape, units=units, activation=activation)
        return Task.of(net.double(), data)


def observe(task: Task, batch: Batch, protocol: Protocol | None = None) -> Observation:
    protocol = protocol or FedSGD()
    update = client_update(task, protocol, batch, Draws(0))
    return Observation(task, update, Knowledge(example_count=len(batch), local_training=protocol))


def random(n: int, data: DataSpec) -> Batch:
    g = torch.Generator().manual_seed(1)
    inputs = torch.rand((n, *data.shape), generator=g, dtype=torch.float64)
    return Batch(inputs, torch.arange(n) % data.classes)


def worst(found: torch.Tensor | None, batch: Batch) -> float:
    assert found is not None
    mates = assign(found, batch.inputs)
    return float(L1()(mates.take(found), batch.inputs).max()) / batch.inputs[0].numel()


def test_the_published_schedule_decays_every_m_steps_only() -> None:
    prior = qian_hansen().prior
    assert isinstance(prior, Decaying)
    assert (prior.factor, prior.every) == (0.9, 2000)
    x = torch.full((1, 4), 2.0)
    assert float(prior(x)) == pytest.approx(0.1 * 16)
    assert float(prior(x.expand(2, 4))) == pytest.approx(0.1 * 2 * 16**2)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_recovers_a_recording(activation: str) -> None:
    """Shape (1, 256), no picture; labels soft and unknown."""
    time = torch.linspace(0, 1, 256).double()
    beats = sum((-(((time - at) / 0.02) ** 2)).exp() for at in (0.2, 0.6))
    batch = Batch((0.3 + 0.1 * (12 * time).sin() + 0.5 * beats)[None, None], torch.tensor([3]))
    attack = qian_hansen(weight=0.0, minimiser=BoundedLBFGS(steps=300, scale=1e6, tolerance=0.0))
    found = attack.reconstruct(
        observe(task_of(8, DataSpec((1, 256), 5), activation), batch), torch.Generator().manual_seed(0)
    )
    assert found.labels is not None
    assert found.labels.tolist() == batch.labels.tolist()
    assert worst(found.inputs, batch) < 1e-3


def test_the_prior_pulls_examples_apart_at_its_own_weight() -> None:
    data = DataSpec((12,), 4)
    batch = random(2, data)
    seen = observe(task_of(3, data), batch)
    free, tied = (
        qian_hansen(weight=w, factor=1.0, minimiser=Adam(steps=60, lr=0.1, signed=False, decay=()))
        .reconstruct(seen, torch.Generator().manual_seed(0))
        .inputs
        for w in (0.0, 1.0)
    )
    assert free is not None
    assert tied is not None
    assert abs(float(tied[0] @ tied[1])) < 0.2 * abs(float(free[0] @ free[1]))


def row_space(units: int, protocol: Protocol) -> float:
    data = DataSpec((1, 24), 6)
    batch = random(3, data)
    attack = RowSpace(minimiser=BoundedLBFGS(steps=300, scale=1e6, tolerance=0.0), restarts=1)
    seen = observe(task_of(units, data), batch, protocol)
    return worst(attack.reconstruct(seen, torch.Generator().manual_seed(0)).inputs, batch)


def test_row_space_needs_one_unit_an_example() -> None:
    assert row_space(3, FedSGD()) < 1e-3
    assert row_space(2, FedSGD()) > 0.03


def test_row_space_of_local_training() -> None:
    assert row_space(3, FedAvg(epochs=2, batch_size=3, lr=0.5)) < 1e-3


def test_row_space_says_what_it_needs() -> None:
    data = DataSpec((3, 8, 8), 5)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 5))
    convolution = Task.of(net.double(), data)
    got = RowSpace().reconstruct(observe(convolution, random(2, data)), torch.Generator().manual_seed(0))
    assert got.status is Status.NOT_APPLICABLE
    assert "reads the input" in got.message
    seen = observe(task_of(3, DataSpec((12,), 4)), random(2, DataSpec((12,), 4)))
    blind = Observation(
        seen.task,
        type(seen.update)(seen.update.tensors, type(seen.update.header)(seen.update.header.kind)),
        Knowledge(),
    )
    assert "number of examples" in RowSpace().reconstruct(blind, torch.Generator().manual_seed(0)).message


def test_span_decodes_combinations() -> None:
    basis = torch.eye(6, dtype=torch.float64)[:2]
    data = DataSpec((1, 6), 2)
    span = SpanCanvas(basis)
    start = span.start(3, data, torch.Generator().manual_seed(0))
    assert start["coefficients"].shape == (3, 2)
    decoded = span.decode(start, data)
    assert decoded.shape == (3, 1, 6)
    assert float(decoded[..., 2:].abs().max()) == 0
    assert span.bounds(data) == {}


@pytest.mark.parametrize(("joint", "middle", "spread"), [(qian_hansen().labels, 0.5, 12**-0.5), (dlg().labels, 0, 1)])
def test_soft_labels_start_as_each_paper_has_it(joint: JointSoftLabels, middle: float, spread: float) -> None:
    logits = joint.start(20_000, 3, torch.Generator().manual_seed(0))
    assert logits.shape == (20_000, 3)
    assert float(logits.mean()) == pytest.approx(middle, abs=0.02)
    assert float(logits.std()) == pytest.approx(spread, rel=0.02)
    assert bool(((logits >= 0) & (logits <= 1)).all()) == (middle == 0.5)
