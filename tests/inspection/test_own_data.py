"""The client's own batch: crafted heads, rows and losses stand out against honest networks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cases import SPEC, batch, task
from leakgauge.clients.protocol import example_gradients
from leakgauge.inspection.drives import driven, drives
from leakgauge.inspection.rule import Measurement, Received
from leakgauge.inspection.rules.values import FixedAnswer
from leakgauge.task import Batch, Mode, Task

D = 192


def perceptron(width: int = 64) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(D, width), nn.ReLU(), nn.Linear(width, 5))


def measured(module: nn.Module | Task, b: Batch | None = None) -> Measurement:
    t = module if isinstance(module, Task) else Task.of(module, SPEC)
    return FixedAnswer().measure(Received(state={}, task=t, batch=b or batch(16, torch.float32)))


@pytest.mark.parametrize("model", ["smooth", "relu", "normed", "flat"])
def test_honest_models_are_quiet(model: str) -> None:
    assert measured(task(model), batch(16)).statistic <= 10


def test_a_decoy_and_a_constant_feature_fix_the_answer() -> None:
    net = perceptron()
    with torch.no_grad():
        net[3].bias[2] += 30
    assert measured(net).statistic > 10
    net = perceptron()
    with torch.no_grad():  # without a bias at the classifier that any other rule would look at
        net[1].weight[0], net[1].bias[0], net[3].weight[2, 0] = 0, 1, 30
    assert measured(net).statistic > 10


def test_large_answers_that_vary_are_no_decoy() -> None:
    net = perceptron()
    with torch.no_grad():
        net[3].weight *= 300
    assert measured(net).statistic < 10


def test_a_dead_start_prefers_nothing() -> None:
    net = perceptron()
    nn.init.zeros_(net[3].weight)
    nn.init.zeros_(net[3].bias)
    assert measured(net).statistic == 0


def test_too_few_answers_are_said() -> None:
    net = perceptron()
    for found in (measured(net, batch(1, torch.float32)), measured(_broken(net))):
        assert found.statistic == 0
        assert found.unjudged[0].name == "batch"


def _broken(net: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        net[3].bias[0] = math.nan
    return net


def test_rows_are_those_of_each_examples_gradient() -> None:
    """Oracle: example by example, with the residual's length taken out."""
    t, b = task("flat"), batch(6)
    found = drives(t, b)
    whole = example_gradients(t, t.parameters, t.buffers, b, None)
    logits = t.logits(t.parameters, t.buffers, b.inputs)[0]
    residual = (logits.softmax(1) - nn.functional.one_hot(b.labels, 5)).norm(dim=1)
    hidden = found.hidden[0]
    assert (hidden.name, hidden.linear, hidden.head) == ("1", True, False)
    assert found.layers[-1].head
    torch.testing.assert_close(found.residuals, residual)
    torch.testing.assert_close(hidden.rows * residual[:, None], whole["1.bias"].abs())
    torch.testing.assert_close(hidden.gain * residual, whole["1.weight"].flatten(1).norm(dim=1))


def test_a_batch_in_pieces_is_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    t, b = task("relu"), batch(7)
    whole = drives(t, b)
    monkeypatch.setattr("leakgauge.inspection.drives.VALUES_AT_ONCE", 2 * D)
    pieces = drives(t, b)
    for one, other in zip(whole.layers, pieces.layers, strict=True):
        torch.testing.assert_close(one.rows, other.rows)
        torch.testing.assert_close(one.inputs, other.inputs)


def test_in_place_activations_do_not_disturb() -> None:
    def net(inplace: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(3, 4, 3, 2, 1),
                nn.ReLU(inplace),
                nn.Flatten(),
                nn.Linear(64, 8),
                nn.ReLU(inplace),
                nn.Linear(8, 5),
            )

    b = batch(4, torch.float32)
    for one, other in zip(
        drives(Task.of(net(True), SPEC), b).layers, drives(Task.of(net(False), SPEC), b).layers, strict=True
    ):
        torch.testing.assert_close(one.rows, other.rows)


def test_driven_means_a_share_of_the_row() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.5], [1e-4, 0.0, 0.0]])
    assert driven(rows).tolist() == [[True, False, True], [False, False, True], [False, False, False]]


def test_measuring_changes_nothing_and_repeats() -> None:
    t, b = task("normed", Mode.TRAIN), batch(16)
    before, inputs, drawn = copy.deepcopy(t), b.inputs.clone(), torch.get_rng_state()
    first = measured(t, b)
    assert measured(t, b) == first
    drives(t, b)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(b.inputs, inputs)
    assert t.module.training
    assert not any(m._forward_hooks for m in t.module.modules())
    for mine, theirs in ((t.parameters, before.parameters), (t.buffers, before.buffers)):
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items())
