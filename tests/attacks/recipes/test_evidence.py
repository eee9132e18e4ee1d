"""Evidence first: what a few lines read off the update is in the answer of `auto`, whatever else fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.clients import FedSGD
from leakgauge.draws import Draws
from leakgauge.step import losses

GREY = lg.Image((1, 8, 8))
Loss = Callable[[nn.Module, dict[str, Tensor]], Tensor]


def perceptron(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 120), nn.ReLU(), nn.Linear(120, outputs))


def squares(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["y"])


def several(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"].to(batch["x"].dtype))


def classes(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def again(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.mse_loss(model(batch["x"]), batch["x"].flatten(1))


CASES: dict[str, tuple[int, Loss, dict[str, lg.Classes | lg.Labels | lg.Values]]] = {
    "three values": (3, squares, {"y": lg.Values(3)}),
    "six labels": (6, several, {"y": lg.Labels(6)}),
    "its own input": (64, again, {}),
    "classes": (5, classes, {"y": lg.Classes(5)}),
}


def smooth(count: int) -> Tensor:
    """Pictures whose examples share most units, as photos do."""
    drawn = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    flat = F.avg_pool2d(drawn, 3, stride=1, padding=1, count_include_pad=False)
    return (flat - flat.min()) / (flat.max() - flat.min())


def by_hand(sent: dict[str, Tensor], truth: Tensor, rows: int = 2) -> int:
    """Examples that so many rows over their biases show, which only these drive."""
    ratios = sent["1.weight"].double() / sent["1.bias"].double()[:, None]
    gaps = torch.cdist(ratios[ratios.isfinite().all(1)], truth.flatten(1).double()) / truth[0].numel() ** 0.5
    return int(((gaps < 1e-4).sum(0) >= rows).sum())


@pytest.mark.parametrize("name", CASES)
def test_no_fewer_examples_come_back_than_rows_show_by_hand(name: str) -> None:
    outputs, loss, target = CASES[name]
    task = lg.Task.of_step(perceptron(outputs), loss, {"x": GREY, **target})
    batch = {"x": smooth(4)} | {k: spec.made_up(4, torch.Generator().manual_seed(1)) for k, spec in target.items()}
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    shown = by_hand(dict(update.tensors), batch["x"])
    assert shown, "the draw tests nothing"
    budget = lg.Budget(gradient_evaluations=30)
    found = lg.attack(task, update, knows=lg.Knowledge(example_count=4, local_training=FedSGD()), budget=budget)
    assert found.inputs is not None
    assert len(found.inputs) == 4
    gaps = torch.cdist(found.inputs.flatten(1).double(), batch["x"].flatten(1).double()) / 8
    assert int((gaps.amin(0) < 1e-3).sum()) >= shown
    assert found.certified is None or not bool((gaps.amin(1)[found.certified] > 1e-3).any())


def test_a_read_that_explains_the_update_is_not_lost_for_want_of_a_proof() -> None:
    """Columns of very different size: no certificate holds for the small ones."""
    low, high = (0.0,) * 3 + (-50.0,) * 3, (1.0,) * 3 + (150.0,) * 3
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 1))
    task = lg.Task.of_step(
        net, lambda m, b: losses.squares(m(b["x"]), b["y"]), {"x": lg.Numbers(6, low, high), "y": lg.Values()}
    )
    batch = {"x": torch.tensor([[0.2, 0.7, 0.4, 32.0, -7.0, 120.0]]), "y": torch.ones(1)}
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=20))
    torch.testing.assert_close(found.parts["x"].float(), batch["x"], rtol=1e-3, atol=1e-3)


def test_a_batch_of_a_step_is_certified_as_that_of_the_short_form() -> None:
    """A loss that counts its examples cannot be asked for logits where a hook answers for others."""
    net = perceptron(5)
    step = lg.Task.of_step(net, classes, {"x": GREY, "y": lg.Classes(5)})
    inputs, labels = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(5)), torch.tensor([0, 3, 3, 1])
    update = lg.clients.client_update(step, FedSGD(), {"x": inputs, "y": labels}, Draws(0))
    found, plain = lg.attack(step, update), lg.attack(lg.Task.of(net, lg.DataSpec((1, 8, 8), 5)), update)
    assert found.status is plain.status is lg.Status.EXACT


class Parted(nn.Module):
    """A vision transformer with tokens before its patches, and behind them."""

    def __init__(self, before: int, behind: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut = nn.Conv2d(1, 32, 4, stride=4)
        self.before, self.behind = (nn.Parameter(torch.randn(1, n, 32)) for n in (before, behind))
        self.places = nn.Parameter(torch.randn(1, before + 4 + behind, 32) / 10)
        self.body = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        cut = self.cut(x).flatten(2).transpose(1, 2)
        around = [t.expand(len(x), -1, -1) for t in (self.before, self.behind)]
        return self.head(self.body(torch.cat([around[0], cut, around[1]], 1) + self.places)[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("before", "behind"), [(1, 0), (2, 0), (0, 1), (4, 2)])
def test_patches_are_read_whatever_tokens_stand_beside_them(before: int, behind: int) -> None:
    task = lg.Task.of(Parted(before, behind), lg.DataSpec((1, 8, 8), 5))
    batch = lg.Batch(smooth(1), torch.tensor([2]))
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(0))
    found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=5))
    assert found.inputs is not None
    torch.testing.assert_close(found.inputs, batch.inputs, rtol=0, atol=1e-3)


DRAWING = {"patches": 1, "dense": 4}


def drawing(name: str) -> lg.Task:
    """Networks that draw at random behind their first layer, so that nobody can simulate the client."""
    net: nn.Module = Parted(1, 0)
    if name == "dense":
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 120), nn.ReLU(), nn.Dropout(0.5), nn.Linear(120, 5))
    else:
        net.body.dropout1.p = net.body.dropout2.p = 0.5  # type: ignore[union-attr]
    return lg.Task.of(net, lg.DataSpec((1, 8, 8), 5), mode="train")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", DRAWING)
def test_a_read_is_not_given_up_for_a_search_where_no_simulation_can_compare_them(name: str, seed: int) -> None:
    """One draw of the network against another said which explains more: a picture of 139 dB went for one of 11."""
    task, count = drawing(name), DRAWING[name]
    assert task.stochastic
    batch = lg.Batch(smooth(count), torch.arange(count))
    update = lg.clients.client_update(task, FedSGD(), batch, Draws(seed))
    knows = lg.Knowledge(example_count=count, local_training=FedSGD())
    found = lg.attack(task, update, knows=knows, budget=lg.Budget(gradient_evaluations=40), seed=seed)
    assert found.inputs is not None
    gaps = torch.cdist(found.inputs.flatten(1).double(), batch.inputs.flatten(1).double()) / 8
    hand = 1 if name == "patches" else by_hand(dict(update.tensors), batch.inputs, rows=3)
    assert int((gaps.amin(0) < 1e-3).sum()) >= hand > 0
