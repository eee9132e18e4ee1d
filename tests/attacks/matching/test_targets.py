"""Targets that are no classes (values, labels, masks) are searched for beside the inputs, by what the client did."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.matching import BoundedLBFGS, Matching
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, Protocol
from leakgauge.clients.optimisers import Adam
from leakgauge.observation import Observation
from leakgauge.step import losses
from leakgauge.step.parts import BatchPart

SIDE = 6
STEPS = FedAvg(epochs=2, lr=0.1)
ADAM = LocalTraining(optimiser=Adam(lr=0.01), epochs=2)


def places(count: int) -> nn.Module:
    """A segmentation network without kinks or a linear layer."""
    deep = [nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3, stride=1, padding=1), nn.Tanh()]
    return nn.Sequential(*deep, nn.Conv2d(8, count, 1))


def flat(count: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8 * SIDE**2, count))


def hard(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """A loss of somebody's own, that takes a mask of whole numbers alone."""
    z, y = model(batch["x"]), batch["y"]
    return F.cross_entropy(z, y) + 1 - (z.softmax(1) * F.one_hot(y, 2).movedim(-1, 1)).mean()


def loss_of(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[nn.Module, Mapping[str, Tensor]], Tensor]:
    return lambda model, batch: loss(model(batch["x"]), batch["y"])


KINDS: dict[str, tuple[Callable[[], nn.Module], BatchPart, Callable[[nn.Module, Mapping[str, Tensor]], Tensor]]] = {
    "values": (lambda: flat(2), lg.Values(2), loss_of(losses.squares)),
    "labels": (lambda: flat(3), lg.Labels(3), loss_of(losses.bce)),
    "mask of one": (lambda: places(1), lg.Mask(1, (SIDE, SIDE)), loss_of(losses.dice_ce)),
    "mask": (lambda: places(2), lg.Mask(2, (SIDE, SIDE)), loss_of(losses.dice_ce)),
}


def observed(kind: str, client: Protocol, n: int) -> tuple[Observation, dict[str, Tensor]]:
    torch.manual_seed(0)
    net, target, loss = KINDS[kind]
    task = lg.Task.of_step(net(), loss, {"x": lg.Image((1, SIDE, SIDE)), "y": target})
    draw = torch.Generator().manual_seed(n)
    made = {name: part.made_up(n, draw) for name, part in task.layout.parts.items()}
    made["x"] = F.avg_pool2d(made["x"], 3, stride=1, padding=1)
    if isinstance(target, lg.Mask):
        made["y"] = (made["x"][:, 0] > made["x"].median()).long()
    update = lg.clients.client_update(task, client, made, lg.Draws(0))
    return Observation(task, update, lg.Knowledge(example_count=n, local_training=client)), made


@pytest.mark.parametrize("client", [FedSGD(), STEPS], ids=["gradient", "two steps"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_search_finds_inputs_and_targets(kind: str, client: Protocol) -> None:
    observation, true = observed(kind, client, 1)
    search = Matching(minimiser=BoundedLBFGS(steps=200))
    found = search.reconstruct(observation, torch.Generator().manual_seed(0)).in_parts(observation.task)
    grey = float((true["x"] - 0.5).square().mean())
    assert found.inputs is not None, found.message
    assert float((found.inputs - true["x"]).square().mean()) < 0.6 * grey
    read, target = found.parts["y"].double(), true["y"].double()
    if kind == "values":
        assert float((read - target).abs().max()) < 0.1
    else:
        assert float((read == target).double().mean()) > 0.85


@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_a_gradient_are_searched_too(kind: str) -> None:
    """What Adam sends says less; of a mask a search finds little, and says that it was one."""
    observation, true = observed(kind, ADAM, 1)
    found = lg.attack(
        observation.task, observation.update, knows=observation.knowledge, budget=lg.Budget(gradient_evaluations=60)
    )
    assert found.inputs is not None, found.message
    assert not found.status.name.startswith("EXACT")
    assert found.parts["y"].shape == true["y"].shape


def test_two_pictures_of_a_segmentation_are_searched_for() -> None:
    observation, true = observed("mask", FedSGD(), 2)
    found = lg.attack(
        observation.task, observation.update, knows=observation.knowledge, budget=lg.Budget(gradient_evaluations=300)
    )
    assert found.inputs is not None, found.message
    gaps = (found.inputs[:, None] - true["x"]).square().flatten(2).mean(2)
    grey = float((true["x"] - 0.5).square().mean())
    assert min(float(gaps.diagonal().mean()), float(gaps.flip(1).diagonal().mean())) < 0.6 * grey
    assert found.parts["y"].shape == true["y"].shape


def test_a_loss_that_takes_whole_masks_alone_says_so() -> None:
    task = lg.Task.of_step(places(2), hard, {"x": lg.Image((1, SIDE, SIDE)), "y": lg.Mask(2, (SIDE, SIDE))})
    x, y = torch.rand(2, 1, SIDE, SIDE), torch.randint(2, (2, SIDE, SIDE))
    update = lg.clients.client_update(task, FedSGD(), {"x": x, "y": y}, lg.Draws(0))
    found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=20))
    assert found.inputs is not None, found.message


class Vitals(nn.Module):
    """A recurrent network, of which early steps move the gradient little."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(4, 24, batch_first=True), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.transpose(1, 2))[0][:, -1])  # type: ignore[no-any-return]


def test_a_series_comes_back_whole() -> None:
    """Where the squared misfit of early steps is below rounding, their Jacobian is not."""
    torch.manual_seed(0)
    task = lg.Task.of_step(Vitals(), loss_of(losses.squares), {"x": lg.Series((4, 8)), "y": lg.Values()})
    values = task.layout.made_up(1, torch.Generator().manual_seed(3))
    found = lg.attack(task, lg.clients.client_update(task, FedSGD(), values, lg.Draws(0)))
    torch.testing.assert_close(found.parts["x"].float(), values["x"], rtol=0, atol=1e-2)
    torch.testing.assert_close(found.parts["y"].float(), values["y"], rtol=0, atol=1e-2)
