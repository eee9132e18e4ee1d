"""Ready-made losses against their definitions, and as steps that are attacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.clients import FedSGD
from leakgauge.draws import Draws
from leakgauge.step import losses

PLACES = (4, 3)


def test_dice_is_one_less_the_overlap_of_each_class() -> None:
    torch.manual_seed(0)
    logits, mask = torch.randn(2, 3, *PLACES), torch.randint(3, (2, *PLACES))
    shares, each = logits.softmax(1), []
    for n in range(2):
        for c in range(3):
            truth = (mask[n] == c).float()
            each.append(2 * (shares[n, c] * truth).sum() / (shares[n, c].sum() + truth.sum()))
    torch.testing.assert_close(losses.dice(logits, mask), 1 - torch.stack(each).mean(), rtol=1e-4, atol=1e-4)
    whole = torch.nn.functional.one_hot(mask, 3).permute(0, 3, 1, 2).float()
    torch.testing.assert_close(losses.dice(logits, mask), losses.dice(logits, whole))
    sure = 50 * (whole - 0.5)
    assert float(losses.dice_ce(sure, mask)) < 1e-4
    assert float(losses.dice(sure[:, 1:2], whole[:, 1])) < 1e-4


def test_cox_is_the_likelihood_of_the_order_of_events() -> None:
    torch.manual_seed(0)
    risk, time = torch.randn(5), torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0])
    came = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    each = [(risk[i] - risk[time >= time[i]].exp().sum().log()) for i in range(5) if came[i]]
    torch.testing.assert_close(losses.cox(risk[:, None], torch.stack([time, came], 1)), -torch.stack(each).mean())


def test_focal_without_focus_is_cross_entropy() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    torch.testing.assert_close(losses.focal(logits, labels, 0.0), torch.nn.functional.cross_entropy(logits, labels))
    several = torch.randint(2, (4, 3)).float()
    torch.testing.assert_close(losses.focal(logits, several, 0.0), losses.bce(logits, several))
    assert float(losses.focal(logits, labels)) < float(losses.focal(logits, labels, 0.0))


KINDS: dict[str, tuple[int, Any, Callable[..., Tensor]]] = {
    "bce": (3, lg.Labels(3), losses.bce),
    "squares": (1, lg.Values(), losses.squares),
    "huber": (1, lg.Values(), losses.huber),
    "focal": (3, lg.Classes(3), losses.focal),
    "focal of several labels": (3, lg.Labels(3), losses.focal),
    "cox": (1, lg.TimeToEvent(), losses.cox),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_loss_is_a_step_whose_batch_is_read(kind: str) -> None:
    outputs, target, loss = KINDS[kind]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 120), nn.ReLU(), nn.Linear(120, outputs))
    task = lg.Task.of_step(net, lambda m, b: loss(m(b["x"]), b["y"]), {"x": lg.Image((1, 6, 6)), "y": target})
    values = task.layout.made_up(2, torch.Generator().manual_seed(2))
    if kind == "cox":
        values["y"][:, 1] = 1.0
    update = lg.clients.client_update(task, FedSGD(), values, Draws(0))
    knows = lg.Knowledge(local_training=FedSGD(), defense=lg.defenses.NoDefense())
    found = lg.attack(task, update, knows=knows, budget=lg.Budget(gradient_evaluations=50))
    assert found.status is lg.Status.EXACT
    assert not any(one.raised for one in found.tried)
    if kind in ("bce", "squares", "focal"):
        far = (found.parts["x"][:, None] - values["x"][None]).abs().flatten(2).amax(2)
        torch.testing.assert_close(found.parts["y"].float(), values["y"][far.argmin(1)].float(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("loss", [losses.places, losses.dice, losses.dice_ce, losses.focal])
def test_losses_of_places_run_on_masks(loss: Callable[..., Tensor]) -> None:
    task = lg.Task.of_step(
        nn.Conv2d(1, 3, 1),
        lambda m, b: loss(m(b["image"]), b["mask"]),
        {"image": lg.Image((1, 4, 3)), "mask": lg.Mask(3, PLACES)},
    )
    double = task.to(torch.empty((), dtype=torch.float64))
    batch = task.layout.batch(task.layout.made_up(2, torch.Generator().manual_seed(0)))
    one, two = (t(t.parameters, t.buffers, batch)[0] for t in (task, double))
    torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-6)


def test_a_causal_model_is_taught_its_own_text() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.words(ids).cumsum(1))

    task = lg.Task.of_step(Causal(), lambda m, b: losses.next_token(m(b["text"]), b["text"]), {"text": lg.Text(5, 11)})
    assert task.data.is_text
    text = torch.tensor([[3, 1, 4, 1, 5]])
    update = lg.clients.client_update(task, FedSGD(), {"text": text}, Draws(0))
    found = lg.attack(task, update)
    assert set(found.tokens.counts[0].nonzero().flatten().tolist()) == {1, 3, 4}  # nothing is asked after the last
    assert not found.tokens.whole
    with pytest.raises(lg.InputError, match="not one of the logits and targets alone"):
        task.loss_of(torch.zeros(1, 5, 11), torch.zeros(1, dtype=torch.long))
