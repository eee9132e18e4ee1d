"""Rows that change classes: a trained model's loss and gradient grow, and the update is read as ever."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from reproduce.label_flip import LabelFlip
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, client_update, mean_gradient
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task
from leakgauge.tensors import map_tensors, squared_norm


@functools.cache
def trained(model: str) -> Task:
    """Fits the test batch: a model that is sure of what its clients hold."""
    t, b = task(model), batch(8)
    parameters = t.parameters
    for _ in range(150):
        gradient, _ = mean_gradient(t, parameters, t.buffers, b, None, torch.Generator())
        parameters = map_tensors(lambda p, g: p - 0.5 * g, parameters, gradient)
    return t.with_state(parameters)


def loss_and_length(t: Task) -> tuple[float, float]:
    b = batch(8)
    gradient = mean_gradient(t, t.parameters, t.buffers, b, None, torch.Generator())[0]
    return float(t(t.parameters, t.buffers, b)[0]), float(squared_norm(gradient).sqrt())


@pytest.mark.parametrize(
    "server", [LabelFlip(), LabelFlip(shift=2, biases=False), LabelFlip(shift=0, negate=True)], ids=repr
)
@pytest.mark.parametrize("model", ["smooth", "flat"])
def test_loss_and_gradient_of_a_trained_model_grow(model: str, server: LabelFlip) -> None:
    honest = trained(model)
    loss, length = loss_and_length(honest)
    flipped, longer = loss_and_length(server.broadcast(honest, torch.Generator()).task)
    assert loss < 0.3
    assert flipped > 2
    assert longer > 3 * length


def test_logits_move_with_the_rows() -> None:
    honest, b = task("smooth"), batch(3)
    before = honest.logits(honest.parameters, honest.buffers, b.inputs)[0]

    def after(server: LabelFlip) -> torch.Tensor:
        t = server.broadcast(honest, torch.Generator()).task
        return t.logits(t.parameters, t.buffers, b.inputs)[0]

    assert torch.allclose(after(LabelFlip()), before.roll(-1, 1))
    assert torch.allclose(after(LabelFlip(negate=True)), -before.roll(-1, 1))
    bias = honest.parameters["3.bias"]
    assert torch.allclose(after(LabelFlip(biases=False)), (before - bias).roll(-1, 1) + bias)


def test_outputs_beyond_the_classes_stay() -> None:
    torch.manual_seed(0)
    honest = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 7)), SPEC)
    rows = LabelFlip().broadcast(honest, torch.Generator()).task.parameters["1.weight"]
    assert torch.equal(rows[5:], honest.parameters["1.weight"][5:])
    assert torch.equal(rows[:5], honest.parameters["1.weight"][:5].roll(-1, 0))


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, lr=0.01)], ids=repr)
def test_the_reader_is_the_inner_attack_on_the_flipped_model(protocol) -> None:
    sent, b = LabelFlip().broadcast(trained("smooth"), torch.Generator()), batch(1)
    update = client_update(sent.task, protocol, b, Draws(0))
    known = Knowledge(example_count=1, labels=b.labels, local_training=protocol, crafting=sent.crafting)
    observation, budget = Observation(sent.task, update, known), Budget(gradient_evaluations=60)
    found = sent.crafting.reconstruct(observation, torch.Generator().manual_seed(0), budget=budget)
    plain = Auto().reconstruct(observation, torch.Generator().manual_seed(0), budget=budget)
    assert torch.equal(found.inputs, plain.inputs)
    honest = Auto().reconstruct(
        replace(observation, task=trained("smooth")), torch.Generator().manual_seed(0), budget=budget
    )
    assert float(PSNR()(found.inputs.double(), b.inputs)) > float(PSNR()(honest.inputs.double(), b.inputs)) + 3


def test_what_does_not_move_or_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="every row in its place"):
        LabelFlip(shift=5).broadcast(task("smooth"), torch.Generator())
    with pytest.raises(InputError, match="makes its logits"):
        LabelFlip().broadcast(
            Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh()), SPEC), torch.Generator()
        )
