"""Every class drives rows of its own: checked against directly computed class means."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.quiet import Inconspicuous
from torch import nn

from leakgauge.errors import InputError
from leakgauge.servers.mkor.mkor import Constant, crafted
from leakgauge.servers.mkor.network import linear_stack
from leakgauge.servers.mkor.parts import Decoy
from leakgauge.task import DataSpec, Mode, Task
from mkor_cases import FlatTaps, classifier, craft, error, observed, pictures, read

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


def test_tensors_that_nobody_crafts_are_shared_not_copied() -> None:
    task = classifier()
    name = next(iter(task.parameters))
    result = crafted(task, FlatTaps().craft(task, torch.Generator()), {name: torch.zeros_like(task.parameters[name])})
    assert not result.parameters[name].any()
    assert all(result.parameters[k] is task.parameters[k] for k in task.parameters if k != name)


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


@pytest.mark.parametrize(
    ("head", "hidden"), [(Constant(), (40, 9)), (Inconspicuous(), (19, 30)), (Constant(paths=4), (40, 30))]
)
def test_too_narrow_layers_are_refused(head, hidden) -> None:
    with pytest.raises(InputError, match="room for"):
        craft(classifier(hidden=hidden), head)


@pytest.mark.parametrize("head", HEADS, ids=repr)
def test_paths_carry_classes_through_dropout(head) -> None:
    """Means of repeated classes are weighted by how many paths survive, so single examples are the oracle."""
    task = classifier(hidden=(400, 300), drop=0.5)
    assert task.stochastic
    built = craft(task, head)
    assert built.wiring.lost == pytest.approx(1 - (1 - 0.5**16) ** 2)
    batch = pictures(task, range(10))
    found = read(built, batch)
    assert len(found.classes) == 10
    assert error(found, batch) < 1e-12
    assert "dropout silences" in found.message


@pytest.mark.parametrize("head", [Constant, Inconspicuous])
@pytest.mark.parametrize("paths", [1, 2])
def test_the_stated_chance_of_loss_is_the_measured_one(head, paths) -> None:
    classes = 150
    task = classifier(hidden=(2 * classes * paths, classes * paths), classes=classes, drop=0.5, size=4)
    built = craft(task, head(paths=paths))
    lost = built.wiring.lost
    assert lost == pytest.approx([0.75, 0.4375][paths - 1])
    found = read(built, pictures(task, torch.arange(classes)))
    deviation = (lost * (1 - lost) / classes) ** 0.5
    assert abs(1 - len(found.classes) / classes - lost) < 4 * deviation


def test_eval_mode_needs_one_path() -> None:
    task = classifier(hidden=(400, 300))
    built = craft(task, Constant())
    assert built.wiring.rows.shape == (10, 1)
    assert built.wiring.lost == 0
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
    assert "all rows that belong to classes are zero" in built.wiring.read(seen, torch.arange(36))


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


def test_the_stack_is_read_off_calls_too() -> None:
    layers = linear_stack(Task.of(Functional(), DataSpec((1, 6, 6), 5)))
    assert [(layer.name, layer.relu, layer.dropout) for layer in layers] == [("relu", True, 0.0), ("out", False, 0.0)]


def test_dropout_of_the_features_is_refused() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 20), nn.ReLU(), nn.Linear(20, 5))
    with pytest.raises(InputError, match="drops what enters 2"):
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
