"""Named parts, the two tensors of a batch, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.clients import FedAvg, FedSGD, SecureAggregation
from leakgauge.draws import Draws
from leakgauge.step.layout import Layout

PARTS: dict[str, Any] = {
    "image": lg.Image((3, 4, 4), mean=(0.5,), std=(0.2,)),
    "raw image": lg.Image((1, 4, 4), low=-2, high=3),
    "volume": lg.Volume((1, 3, 4, 5)),
    "series": lg.Series((2, 7)),
    "numbers": lg.Numbers(3),
    "ranges": lg.Numbers(3, low=(0.0, 18.0, -5.0), high=(1.0, 99.0, 5.0)),
    "categories": lg.Categories((3, 2, 7)),
    "text": lg.Text(6, 50, padding=0),
}
TARGETS: dict[str, Any] = {
    "classes": lg.Classes(4),
    "labels": lg.Labels(5),
    "value": lg.Values(),
    "values": lg.Values(3, low=0, high=200),
    "mask": lg.Mask(3, (4, 5)),
    "next": lg.NextToken(50, 6),
    "survival": lg.TimeToEvent(),
}


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("inputs", [*([n] for n in PARTS), ["image", "ranges", "categories", "text"]], ids=str)
@pytest.mark.parametrize("targets", [[], *([n] for n in TARGETS), ["classes", "value", "mask"]], ids=str)
def test_a_batch_comes_back_part_by_part(inputs: list[str], targets: list[str]) -> None:
    layout = Layout.of({n: PARTS[n] for n in inputs} | {n: TARGETS[n] for n in targets})
    values = layout.made_up(3, draws())
    batch = layout.batch(values)
    assert batch.inputs.shape == (3, *layout.spec.shape)
    assert batch.inputs.is_floating_point()
    assert len(batch.labels) == 3
    back = layout.raw_inputs(batch.inputs) | layout.raw_targets(batch.labels)
    given = layout.given(batch)
    for name in [*inputs, *targets]:
        torch.testing.assert_close(back[name].to(values[name]), values[name], rtol=1e-5, atol=1e-4)
        part = {**PARTS, **TARGETS}[name]
        assert given[name].is_floating_point() is not part.whole
        if part.whole:
            assert torch.equal(given[name], values[name])


@pytest.mark.parametrize("name", TARGETS)
def test_a_plain_number_stands_for_a_target(name: str) -> None:
    """Whatever makes up a class without asking makes up every other target too."""
    target = TARGETS[name]
    layout = Layout.of({"image": PARTS["image"], "target": target})
    shape = target.made_up(2, draws()).shape
    given = layout.given(lg.Batch(torch.zeros(2, 3, 4, 4), torch.arange(2) % layout.spec.classes))["target"]
    assert given.shape == shape
    assert given.is_contiguous()  # losses view it flat
    assert given.is_floating_point() is not target.whole


def test_what_is_looked_up_stays_in_its_range() -> None:
    layout = Layout.of({"cards": lg.Categories((3, 2)), "age": lg.Numbers(1, 18.0, 99.0)})
    given = layout.given(lg.Batch(torch.tensor([[-4.0, 7.0, 2.0]]), torch.zeros(1, dtype=torch.long)))
    assert given["cards"].tolist() == [[0, 1]]
    assert given["age"].tolist() == [[180.0]]


@dataclass
class Visit:
    image: Tensor
    age: Tensor


def test_batches_are_dicts_tuples_or_dataclasses() -> None:
    layout = Layout.of({"image": PARTS["image"], "age": lg.Values()})
    image, age = torch.rand(2, 3, 4, 4), torch.tensor([30.0, 70.0])
    for values in ({"age": age, "image": image}, (image, age), Visit(image, age)):
        batch = layout.batch(values)
        assert torch.equal(batch.inputs, image)
        assert torch.equal(batch.labels, age)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"image": None}, "batch: lacks image"),
        ({"weight": torch.zeros(2)}, "batch: has weight"),
        ({"age": torch.zeros(3)}, r"batch.age: has shape \(3,\)"),
        ({"image": torch.full((2, 3, 4, 4), torch.nan)}, "batch.image: holds NaN"),
        ({"kind": torch.tensor([0, 4])}, "batch.kind: goes from 0 to 4; give whole numbers from 0 to 3"),
    ],
)
def test_a_batch_that_does_not_fit_is_one_line(changed: dict[str, Any], words: str) -> None:
    layout = Layout.of({"image": PARTS["image"], "age": lg.Values(), "kind": lg.Classes(4)})
    values = {**layout.made_up(2, draws()), **changed}
    with pytest.raises(lg.InputError, match=words):
        layout.batch({name: value for name, value in values.items() if value is not None})


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"age": lg.Values()}, "no part that a client keeps to itself"),
        ({"image": (1, 8, 8)}, "batch.image: is a tuple"),
    ],
)
def test_parts_that_make_no_batch_are_one_line(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(lg.InputError, match=words):
        Layout.of(parts)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lg.Image((8, 8)),
        lambda: lg.Volume((1, 8, 8)),
        lambda: lg.Image((1, 8, 8), low=1, high=0),
        lambda: lg.Image((3, 8, 8), mean=(0.1, 0.2)),
        lambda: lg.Numbers(3, low=(0.0, 1.0)),
        lambda: lg.Categories((1,)),
        lambda: lg.Text(0, 5),
        lambda: lg.Text(5, 5, padding=9),
        lambda: lg.Labels(0),
        lambda: lg.Mask(2, (0, 4)),
        lambda: lg.Values(low=1, high=1),
    ],
)
def test_impossible_parts_are_refused(make: Any) -> None:
    with pytest.raises(lg.InputError):
        make()


def net(outputs: int, size: int = 48) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 40), nn.ReLU(), nn.Linear(40, outputs))


def test_the_short_form_is_the_same_step() -> None:
    """One mechanism: loss, gradient, certificate."""
    short = lg.Task.of(net(4), lg.DataSpec((3, 4, 4), 4, mean=(0.5,), std=(0.2,)))

    def loss(m: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(m(b["image"]), b["kind"])

    long = lg.Task.of_step(net(4), loss, {"image": PARTS["image"], "kind": lg.Classes(4)})
    batch = lg.Batch(torch.rand(3, 3, 4, 4), torch.tensor([0, 3, 1]))
    for client in (FedSGD(), FedAvg(epochs=2, batch_size=2), SecureAggregation(cohort=3)):
        one, two = (lg.clients.client_update(t, client, batch, Draws(0)) for t in (short, long))
        for name in one.tensors:
            torch.testing.assert_close(one.tensors[name], two.tensors[name])
    assert long.outputs == short.outputs == 4
    assert long.of_classes
    logits, _ = long.logits(long.parameters, long.buffers, batch.inputs)
    torch.testing.assert_close(logits, short.logits(short.parameters, short.buffers, batch.inputs)[0])
    torch.testing.assert_close(long.loss_of(logits, batch.labels), F.cross_entropy(logits, batch.labels))
    update = lg.clients.client_update(long, FedSGD(), batch, Draws(0))
    found = lg.attack(long, update)
    assert found.status is lg.Status.EXACT
    assert sorted(found.parts) == ["image", "kind"]
    assert found.parts["kind"].sort().values.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            lambda m, b: F.mse_loss(m(b["images"])[:, 0], b["age"]),
            "does not run on a made-up batch of 4 .KeyError: 'images'",
        ),
        (lambda m, b: m(b["image"]), "is not one number"),
        (lambda m, b: m(b["image"]).detach().mean(), "does not depend on the model's parameters"),
    ],
)
def test_a_step_that_cannot_be_used_is_one_line(step: Any, words: str) -> None:
    with pytest.raises(lg.InputError, match=words):
        lg.Task.of_step(net(1), step, {"image": PARTS["image"], "age": lg.Values()})


class Packed(nn.Module):
    """Wants lengths that add up, which no range says."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        if int(counts.sum(1).max()) > 4:
            raise ValueError("more than four in all")
        return self.out(x)


def test_a_probe_of_the_users_stands_for_parts_that_cannot_be_guessed() -> None:
    def loss(m: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return m(b["x"], b["counts"]).square().mean()

    parts = {"x": lg.Numbers(4), "counts": lg.Categories((5, 5, 5))}
    with pytest.raises(lg.InputError, match="or a probe that makes a batch it accepts"):
        lg.Task.of_step(Packed(), loss, parts)

    def probe(count: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"x": torch.rand(count, 4, generator=generator), "counts": torch.ones(count, 3).long()}

    assert lg.Task.of_step(Packed(), loss, parts, probe=probe).layout.alone == ""


def test_what_both_sides_know_is_the_same_for_all_examples() -> None:
    grid = torch.linspace(0, 1, 5)

    def loss(m: nn.Module, b: dict[str, Tensor]) -> Tensor:
        assert b["grid"].shape == (len(b["x"]), 5)
        return (m(b["x"] + b["grid"])[:, 0] - b["y"]).square().mean()

    task = lg.Task.of_step(nn.Linear(5, 1), loss, {"x": lg.Numbers(5), "grid": grid, "y": lg.Values()})
    values = {"x": torch.rand(2, 5), "y": torch.zeros(2)}
    lg.clients.client_update(task, FedSGD(), values, Draws(0))
    double = task.to(torch.empty((), dtype=torch.float64))
    assert double(double.parameters, double.buffers, task.layout.batch(values))[0].dtype is torch.float64


def test_a_step_that_adds_more_than_its_logits_says_so() -> None:
    def loss(m: nn.Module, b: dict[str, Tensor]) -> Tensor:
        return m[3](m[2](m[1](b["image"].flatten(1)))).square().mean()

    task = lg.Task.of_step(net(1), loss, {"image": PARTS["image"]})
    assert task.outputs == 0
    with pytest.raises(lg.InputError, match="not called as a whole"):
        task.logits(task.parameters, task.buffers, torch.rand(1, 3, 4, 4))
    update = lg.clients.client_update(task, FedSGD(), {"image": torch.rand(1, 3, 4, 4)}, Draws(0))
    assert lg.attack(task, update, budget=lg.Budget(gradient_evaluations=5)).inputs is not None
