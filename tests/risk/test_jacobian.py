"""Numerical ranks against a dense Jacobian by finite differences, and against the counts."""

from __future__ import annotations

import pytest
import torch
from reproduce.qian_hansen.networks import one_convolution, one_hidden_layer
from torch import nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.models import mlp
from leakgauge.models.networks import ACTIVATIONS
from leakgauge.risk import jacobian
from leakgauge.risk.jacobian import Rank, count_layers, low_rank, random_batch, update_rank
from leakgauge.task import Batch, DataSpec, Mode, Task


def task_of(build, spec: DataSpec, **options) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task.of(build(**options).double(), spec)


def linear(units: int, *, d: int = 40, classes: int = 10, activation: str = "sigmoid") -> Task:
    spec = DataSpec((d,), classes)
    return task_of(one_hidden_layer, spec, classes=classes, shape=(d,), units=units, activation=activation)


def convolution(filters: int, *, size: int = 8, kernel: int = 5, channels: int = 3, classes: int = 10) -> Task:
    side = (size + 1) // 2

    def build() -> nn.Module:
        net = nn.Sequential(
            nn.Conv2d(channels, filters, kernel, 2, kernel // 2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(filters * side * side, classes),
        )
        for parameter in net.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
        return net

    return task_of(build, DataSpec((channels, size, size), classes))


def rank(task: Task, batch: int, **options) -> Rank:
    g = torch.Generator().manual_seed(0)
    found = update_rank(task, random_batch(task, batch, g), g, **options)
    assert found is not None
    return found


def test_is_the_rank_of_finite_differences() -> None:
    task, g = linear(2, d=6, classes=3), torch.Generator().manual_seed(0)
    batch = random_batch(task, 3, g)

    def update(x: torch.Tensor) -> torch.Tensor:
        sent = client_update(task, FedSGD(), Batch(x, batch.labels), Draws(0)).tensors
        return torch.cat([v.flatten() for v in sent.values()])

    columns = []
    for i in range(batch.inputs.numel()):
        step = torch.zeros(batch.inputs.numel(), dtype=torch.float64)
        step[i] = 1e-5
        step = step.view_as(batch.inputs)
        columns.append((update(batch.inputs + step) - update(batch.inputs - step)) / 2e-5)
    values = torch.linalg.svdvals(torch.stack(columns, 1))
    found = update_rank(task, batch, g)
    assert found is not None
    assert found.rank == int((values > 1e-7 * values[0]).sum()) < found.unknowns == 18
    assert found.conditioning == pytest.approx(float(values[found.rank - 1] / values[0]), rel=1e-3)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("soft", [False, True])
def test_a_linear_layer_needs_one_unit_an_example(batch: int, soft: bool) -> None:
    for units in range(1, 6):
        task = linear(units, activation="tanh" if units % 2 else "sigmoid")
        found = rank(task, batch, soft_labels=soft)
        assert found.rank == count_layers(task, batch, soft_labels=soft).bound
        assert (found.rank == found.unknowns) == (units >= batch)


@pytest.mark.parametrize(("kernel", "batch", "needed"), [(5, 1, 3), (5, 3, 5), (3, 1, 6), (3, 2, 8)])
def test_a_convolution_turns_full_where_the_count_does(kernel: int, batch: int, needed: int) -> None:
    for filters in (needed - 1, needed):
        task = convolution(filters, kernel=kernel)
        found, bound = rank(task, batch), count_layers(task, batch).bound
        assert found.rank <= bound
        assert (found.rank == found.unknowns) == (filters == needed) == (bound == found.unknowns)


def test_the_simple_count_is_too_low_where_equations_repeat_each_other() -> None:
    """Kernel 3, 8 pixels: B·C·d² / (B·d'² + C·k² + 1) asks for 5 filters, which leave 14 of 192 directions open."""
    assert rank(convolution(5, kernel=3), 1).rank == 178


@pytest.mark.parametrize(("batch", "needed"), [(1, 6), pytest.param(2, 8, marks=pytest.mark.slow)])
def test_the_transitions_of_sixteen_pixels(batch: int, needed: int) -> None:
    spec = DataSpec((3, 16, 16), 10)
    for filters in (needed - 1, needed):
        task = task_of(one_convolution, spec, size=16, filters=filters)
        found = rank(task, batch)
        assert (found.rank == found.unknowns) == (filters == needed)


def test_units_that_are_silent_tell_nothing() -> None:
    """A ReLU network may fall below the count, never above it."""
    task = linear(3, activation="relu")
    assert rank(task, 4).rank <= count_layers(task, 4).bound
    dead = {k: torch.full_like(v, -1.0) if k in ("1.weight", "1.bias") else v for k, v in task.parameters.items()}
    assert rank(task.with_state(dead), 1).rank == 0


@pytest.mark.parametrize("hidden", [(3, 6), (8, 2)])
def test_the_bound_of_deeper_networks_is_met(hidden: tuple[int, ...]) -> None:
    spec = DataSpec((1, 48), 5)
    task = task_of(mlp, spec, classes=5, shape=(1, 48), hidden=hidden, activation="tanh")
    assert rank(task, 4).rank == count_layers(task, 4).bound


def test_a_matrix_that_is_too_large_is_not_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    task = linear(3, d=24)
    found = rank(task, 3)
    monkeypatch.setattr(jacobian, "DENSE", found.equations * found.unknowns)
    assert rank(task, 3) == found
    monkeypatch.setattr(jacobian, "DENSE", found.equations * found.unknowns - 1)
    assert update_rank(task, random_batch(task, 3, torch.Generator()), torch.Generator()) is None


def test_recordings() -> None:
    """Nothing here is about pictures."""
    spec = DataSpec((1, 12), 4)
    task = task_of(mlp, spec, classes=4, shape=(1, 12), hidden=(3,), activation="sigmoid")
    found = rank(task, 2)
    assert found.rank == found.unknowns
    assert set(ACTIVATIONS) == {"sigmoid", "tanh", "relu"}


def test_what_cannot_be_counted_says_so() -> None:
    spec = DataSpec((8,), 3)
    net = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5), nn.Linear(4, 3))
    with pytest.raises(InputError, match="eval"):
        rank(Task.of(net, spec, mode=Mode.TRAIN), 1)
    with pytest.raises(InputError, match="positive"):
        rank(linear(1), 0)


def test_low_rank_matrices_have_their_dimension() -> None:
    """Tangent space by brute force: the differential of (A, B) → A·B at a random point."""
    g = torch.Generator().manual_seed(0)
    for rows, columns, rank in ((3, 5, 2), (4, 4, 1), (2, 6, 7)):
        r = min(rows, columns, rank)
        a, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((rows, r), (r, columns)))
        jacobian = torch.cat(
            [j.reshape(rows * columns, -1) for j in torch.autograd.functional.jacobian(torch.matmul, (a, b))], 1
        )
        assert int(torch.linalg.matrix_rank(jacobian)) == low_rank(rows, columns, rank)
