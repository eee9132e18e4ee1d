"""Protocols against torch's own optimiser and against plain loops."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import MODELS, SPEC, batch, task
from leakgauge.clients import (
    FedAvg,
    FedSGD,
    LocalTraining,
    SecureAggregation,
    client_update,
    example_gradients,
    raw_update,
)
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import map_tensors
from leakgauge.update import UpdateKind


def close(a: dict, b: dict, rtol: float = 1e-9) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[k], b[k], rtol=rtol, atol=1e-12) for k in a)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "protocol",
    [
        FedAvg(epochs=3, batch_size=2, lr=0.1),
        FedAvg(epochs=2, batch_size=3, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.02),
        FedAvg(epochs=2, lr=0.05, momentum=0.8, nesterov=True),
        FedAvg(epochs=2, batch_size=2, lr=0.05, shuffle=True),
    ],
    ids=repr,
)
def test_fedavg_is_torch_sgd(protocol: LocalTraining, mode: Mode) -> None:
    t, b = task("normed", mode), batch(5)
    module = copy.deepcopy(t.module).train(mode is Mode.TRAIN)
    optimiser = torch.optim.SGD(
        module.parameters(),
        protocol.optimiser.lr,
        protocol.optimiser.momentum,
        protocol.optimiser.dampening,
        protocol.optimiser.weight_decay,
        protocol.optimiser.nesterov,
    )
    for index in protocol.order(5, Draws(3)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(SPEC.normalise(b.inputs[index])), b.labels[index]).backward()
        optimiser.step()
    moved = {k: v.detach() - t.parameters[k] for k, v in module.named_parameters()}
    update = client_update(t, protocol, b, Draws(3), send_buffers=True)
    assert update.header.kind is UpdateKind.DELTA
    assert close(update.tensors, moved)
    assert update.buffers is not None
    assert close(update.buffers, dict(module.named_buffers()))


def test_a_delta_points_against_the_gradient() -> None:
    t, b = task(), batch()
    gradient = client_update(t, FedSGD(), b, Draws(0))
    delta = client_update(t, FedAvg(lr=0.1), b, Draws(0))
    assert gradient.header.kind is UpdateKind.GRADIENT
    assert close(delta.tensors, map_tensors(lambda g: -0.1 * g, gradient.tensors))


def test_shuffled_order_is_a_draw() -> None:
    protocol = FedAvg(epochs=2, batch_size=2, shuffle=True)
    orders = [torch.cat(protocol.order(6, Draws(s))).tolist() for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0][:6]) == sorted(orders[0][6:]) == list(range(6))
    assert orders[0][:6] != orders[0][6:]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from([FedSGD(), FedAvg(epochs=2, lr=0.2)]))
def test_4_aggregate_is_the_weighted_mean(sizes: list[int], client: FedSGD | LocalTraining) -> None:
    t, b = task(), batch(sum(sizes))
    together = client_update(t, SecureAggregation(cohort=len(sizes), client=client, sizes=tuple(sizes)), b, Draws(0))
    parts = zip(b.inputs.split(sizes), b.labels.split(sizes), sizes, strict=True)
    total = {k: torch.zeros_like(v) for k, v in t.parameters.items()}
    for x, y, n in parts:
        one = client_update(t, client, Batch(x, y), Draws(0)).tensors
        total = {k: total[k] + n * one[k] for k in total}
    assert close(together.tensors, {k: v / sum(sizes) for k, v in total.items()})
    assert together.header.example_count == sum(sizes)


def test_example_gradients_are_gradients_of_one() -> None:
    t, b = task("relu"), batch(4)
    stacked = example_gradients(t, t.parameters, t.buffers, b, None)
    for i in range(4):
        one = client_update(t, FedSGD(), b.take(torch.tensor([i])), Draws(0)).tensors
        assert close({k: v[i] for k, v in stacked.items()}, one)


def test_example_gradients_are_refused_where_examples_mix() -> None:
    with pytest.raises(InputError, match="GroupNorm"):
        example_gradients(task("normed", Mode.TRAIN), {}, {}, batch(), None)


def test_unrolled_training_starts_at_the_broadcast_parameters() -> None:
    """Known defect (ROG release): unrolling from θ_τ makes the simulation wrong by half at the true image."""
    t, b, protocol = task(), batch(), FedAvg(epochs=5, lr=0.5)
    update = client_update(t, protocol, b, Draws(0))
    trained = t.with_state({k: v + update.tensors[k] for k, v in t.parameters.items()})
    wrong = raw_update(trained, protocol, b, Draws(0), NoDefense())[0]
    right = raw_update(t, protocol, b, Draws(0), NoDefense())[0]
    assert close(right, update.tensors)
    assert not close(wrong, update.tensors, rtol=0.1)


def test_the_learning_rate_is_the_plans_and_not_a_constant() -> None:
    """Known defect (LeakPro, AIJack): a hard-coded learning rate in the simulated client."""
    t, b = task(), batch()
    small, large = (client_update(t, FedAvg(epochs=1, lr=lr), b, Draws(0)).tensors for lr in (0.01, 0.1))
    assert close(large, {k: 10 * v for k, v in small.items()})


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FedAvg(epochs=0), "epochs"),
        (lambda: FedAvg(lr=-1.0), "lr"),
        (lambda: FedAvg(batch_size=0), "batch_size"),
        (lambda: FedAvg(momentum=1.0), "momentum"),
        (lambda: FedAvg(nesterov=True), "nesterov"),
        (lambda: SecureAggregation(cohort=0), "cohort"),
        (lambda: SecureAggregation(cohort=2, sizes=(1,)), "sizes"),
        (lambda: SecureAggregation(cohort=3).counts(4), "cohort"),
    ],
)
def test_bad_settings_name_their_field(make, field: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert error.value.field == field


def test_models_of_the_table_differ() -> None:
    assert len({str(m()) for m in MODELS.values()}) == len(MODELS)


class Branching(nn.Module):
    """What vmap does not run: a layout that asks for four axes, and a branch on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(torch.Size(SPEC.shape).numel(), SPEC.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.contiguous(memory_format=torch.channels_last).flatten(1)
        out: torch.Tensor = self.head(rows)
        return out if float(out.detach().abs().max()) >= 0 else -out


def test_a_network_that_vmap_refuses_has_gradients_of_examples() -> None:
    torch.manual_seed(0)
    t, b = Task.of(Branching(), SPEC), batch(3)
    found = example_gradients(t, t.parameters, t.buffers, b, None)
    for k in range(3):
        one = client_update(t, FedSGD(), b.take(torch.tensor([k])), Draws(0)).tensors
        assert close({name: value[k] for name, value in found.items()}, one, rtol=1e-5)


def test_sparse_gradients_are_sent_as_dense_ones() -> None:
    """An update of ``nn.Embedding(sparse=True)`` could not be looked at."""
    sent = []
    for sparse in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(9, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 3))
        texts = Batch(torch.tensor([[1.0, 4.0, 4.0], [0.0, 2.0, 1.0]]), torch.tensor([0, 2]))
        made = Task.of(net, DataSpec((3,), 3, vocabulary=9))
        sent.append([client_update(made, client, texts, Draws(0)) for client in (FedSGD(), FedAvg(lr=0.1))])
    for dense, other in zip(*sent, strict=True):
        for name, tensor in dense.tensors.items():
            torch.testing.assert_close(other.tensors[name], tensor)
