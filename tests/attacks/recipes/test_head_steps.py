"""The last layer's own steps: order of the labels, from its update alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.recipes.order_search import Order, orders_of, read_head_steps
from leakgauge.clients import FedAvg, LocalTraining, Protocol, client_update
from leakgauge.defenses import noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation

CLIENT = FedAvg(epochs=1, batch_size=1, lr=0.3, shuffle=True)


def seen(client: Protocol, n: int, draws: int, model: str = "smooth") -> tuple[Observation, torch.Tensor]:
    """The observation, and the order in which the client visited its examples."""
    t, b, d = task(model), batch(n), Draws(draws)
    order = torch.cat(client.order(n, d)) if isinstance(client, LocalTraining) else torch.arange(n)
    return Observation(t, client_update(t, client, b, d), Knowledge(b.labels, n, client)), order


def read(observation: Observation, labels: list[int], size: int = 1) -> list[Order]:
    generator = torch.Generator().manual_seed(0)
    return read_head_steps(observation, list(orders_of(labels, size, 120, generator)), generator)


@pytest.mark.parametrize("model", ["smooth", "relu"])
@pytest.mark.parametrize(("n", "size"), [(2, 1), (3, 1), (3, 2)])
def test_the_order_is_told(n: int, size: int, model: str) -> None:
    """Whatever lies below the layer: kinks do not matter."""
    client = replace(CLIENT, batch_size=size)
    for draws in range(2):
        observation, order = seen(client, n, draws, model)
        labels = observation.knowledge.labels
        assert labels is not None
        found = read(observation, labels.tolist(), size)
        visited = [sorted(part.tolist()) for part in labels[order].split(size)]
        right = [[sorted(part.tolist()) for part in torch.tensor(o).split(size)] for o in found]
        assert visited in right


def test_labels_that_the_client_did_not_have_are_refused() -> None:
    observation, _ = seen(CLIENT, 3, 0)
    assert observation.knowledge.labels is not None
    others = [(label + 1) % 5 for label in observation.knowledge.labels.tolist()]
    assert not read(observation, others)


@pytest.mark.parametrize(
    "client",
    [
        replace(CLIENT, epochs=2),
        replace(CLIENT, optimiser=replace(CLIENT.optimiser, momentum=0.1)),
        replace(CLIENT, optimiser=replace(CLIENT.optimiser, weight_decay=0.1)),
    ],
    ids=lambda c: f"{c.epochs}-{c.optimiser.momentum}-{c.optimiser.weight_decay}",
)
def test_other_steps_are_refused(client: LocalTraining) -> None:
    observation, _ = seen(client, 3, 0)
    assert observation.knowledge.labels is not None
    assert not read(observation, observation.knowledge.labels.tolist())


def test_a_defence_too_many_examples_and_a_layer_without_bias_are_refused() -> None:
    observation, _ = seen(CLIENT, 3, 0)
    defended = replace(observation, knowledge=replace(observation.knowledge, defense=noise(relative=1e-3)))
    assert not read(defended, [0, 1, 2])
    for observation in (seen(CLIENT, 5, 0)[0], seen(CLIENT, 3, 0, "unbiased")[0]):
        assert observation.knowledge.labels is not None
        assert not read(observation, observation.knowledge.labels.tolist())


def test_an_update_that_is_not_finite_is_refused() -> None:
    observation, _ = seen(CLIENT, 3, 0)
    for value in observation.update.tensors.values():
        value.fill_(float("nan"))
    assert not read(observation, [0, 1, 2])
