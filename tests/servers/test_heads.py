"""Every class drives rows of its own: checked against directly computed class means."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.quiet import Inconspicuous
from torch import nn

from leakgauge.errors import InputError
from leakgauge.servers.mkor import Constant, Decoy, Routes
from leakgauge.servers.network import linear_stack
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.tensors import Tensors
from mkor_cases import classifier, craft, error, observed, pictures, read

HEADS = [Constant(), Inconspicuous()]
REPEATS = [0, 1, 1, 5, 5, 5, 7, 2, 9]


@pytest.mark.parametrize("hidden", [(40, 30), (40,), (), (40, 30, 35)], ids=["two", "one", "none", "three"])
@pytest.mark.parametrize("head", HEADS, ids=repr)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_class_means_are_exact(head, hidden, dtype, most) -> None:
    task = classifier(hidden=hidden, dtype=dtype)
    built = craft(task, head)
    for labels in (list(range(10)), REPEATS, [4]):
        batch = pictures(task, labels)
        found = read(built, batch)
        assert found.classes.tolist() == sorted(set(labels))
        assert error(found, batch) < most


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_the_honest_task_stays_as_it_is(head) -> None:
    task = classifier()
    before = {name: value.clone() for name, value in task.parameters.items()}
    built = craft(task, head, Decoy())
    assert all(torch.equal(before[name], value) for name, value in task.parameters.items())
    assert built.task.data is task.data
    assert built.task.name == task.name
    assert {k: (v.shape, v.dtype) for k, v in built.task.parameters.items()} == {
        k: (v.shape, v.dtype) for k, v in before.items()
    }


class OneTensor:
    """A head that writes the first bias alone."""

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Routes]:
        state, routes = Constant().craft(task, generator)
        return {"1.bias": state["1.bias"]}, routes


def test_tensors_that_nobody_crafts_are_shared_not_copied() -> None:
    task = classifier()
    result = craft(task, OneTensor()).task
    assert not result.parameters["1.bias"].any()
    assert all(result.parameters[k] is task.parameters[k] for k in task.parameters if k != "1.bias")


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_smooth_stacks_are_exact_for_single_examples(head, activation) -> None:
    task = classifier(activation=activation)
    batch = pictures(task, [3, 0, 8, 9])
    found = read(craft(task, head), batch)
    assert found.classes.tolist() == [0, 3, 8, 9]
    assert error(found, batch) < 1e-9


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_logits_behind_a_relu_stay_alive(head) -> None:
    task = classifier(hidden=(), last_activation=True)
    batch = pictures(task, range(10))
    found = read(craft(task, head), batch)
    assert len(found.classes) == 10
    assert error(found, batch) < 1e-12


def test_an_all_zero_picture_needs_a_bias() -> None:
    """MKOR's modified network: pre-activation 0 gives no gradient."""
    task = classifier(hidden=(), last_activation=True)
    batch = pictures(task, [2, 6])
    batch.inputs[1] = 0
    assert read(craft(task, Constant()), batch).classes.tolist() == [2]
    found = read(craft(task, Constant(bias=0.1)), batch)
    assert found.classes.tolist() == [2, 6]
    assert not found.features[1].any()


@pytest.mark.parametrize(("head", "hidden"), [(Constant(), (40, 9)), (Inconspicuous(), (19, 30))])
def test_too_narrow_layers_are_refused(head, hidden) -> None:
    with pytest.raises(InputError, match="room for"):
        craft(classifier(hidden=hidden), head)


def test_rows_are_equal_below_and_single_above() -> None:
    task = classifier(hidden=(400, 300))
    built = craft(task, Constant())
    assert built.crafting.routes.outputs == 10
    assert torch.equal(built.task.parameters["3.weight"], torch.eye(300, 400, dtype=torch.float64))
    assert torch.equal(built.task.parameters["1.weight"], torch.full((400, 36), 1 / 36, dtype=torch.float64))


def test_more_outputs_than_units_wire_the_classes() -> None:
    task = classifier(hidden=(20, 12), classes=10, outputs=30)
    batch = pictures(task, range(10))
    for head in (Constant(), Inconspicuous()):
        found = read(craft(task, head), batch)
        assert found.classes.tolist() == list(range(10))
        assert error(found, batch) < 1e-12


def test_an_update_of_zeros_is_a_reason() -> None:
    task = classifier()
    built = craft(task, Constant())
    seen = observed(built.task, pictures(task, [1]))
    for value in seen.update.tensors.values():
        value.zero_()
    assert "all rows that belong to classes are zero" in built.crafting.classes(seen)


class Functional(nn.Module):
    """Calls instead of modules, and a layer whose name is that of a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.Linear(64, 20)
        self.out = nn.Linear(20, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.conv(x).view(-1, 64), 0.5, self.training)
        return self.out(nn.functional.dropout(torch.relu(self.relu(h)), 0.25, self.training))


@pytest.mark.parametrize("mode", Mode)
def test_the_stack_is_read_off_calls_too(mode: Mode) -> None:
    layers = linear_stack(Task.of(Functional(), DataSpec((1, 6, 6), 5), mode=mode))
    assert [(layer.name, layer.relu) for layer in layers] == [("relu", True), ("out", False)]


def test_dropout_in_train_mode_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 5))
    with pytest.raises(InputError, match="dropout in train mode"):
        craft(Task.of(net, DataSpec((1, 6, 6), 5), mode=Mode.TRAIN), Constant())
    craft(Task.of(net, DataSpec((1, 6, 6), 5)), Constant())


@pytest.mark.parametrize(
    ("net", "problem"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.LeakyReLU()), "does not end in a linear layer"),
        (nn.Sequential(nn.Conv2d(1, 5, 6), nn.Flatten()), "does not end in a linear layer"),
    ],
)
def test_other_ends_are_refused(net, problem) -> None:
    with pytest.raises(InputError, match=problem):
        linear_stack(Task.of(net, DataSpec((1, 6, 6), 5)))


def test_frozen_layers_are_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 5))
    net[1].bias.requires_grad_(False)
    with pytest.raises(InputError, match=r"does not train 1\.bias"):
        linear_stack(Task.of(net, DataSpec((1, 6, 6), 5)))
