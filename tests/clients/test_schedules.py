"""A learning rate that changes from step to step, and an average of the weights, are torch's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from leakgauge.clients import SGD, Adam, LocalTraining, Optimiser, client_update
from leakgauge.clients.optimisers import CosineRate, RateSchedule
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve
from leakgauge.task import Batch, DataSpec, Task

X, Y = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize(
    ("inner", "kind", "options"),
    [(SGD(lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}), (Adam(lr=0.01), "Adam", {"lr": 0.01})],
)
def test_a_cosine_and_an_average_are_torchs(
    inner: Optimiser, kind: str, options: dict[str, float], ema: float | None
) -> None:
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    task = Task.of(net, DataSpec((5,), 3))
    fall = RateSchedule(optimiser=inner, schedule=CosineRate(cosine=4))
    client = LocalTraining(optimiser=inner, schedule=fall.schedule, ema=ema, epochs=3, batch_size=2)
    moved = client_update(task, client, Batch(X, Y), Draws(0)).tensors
    before = {k: v.clone() for k, v in net.state_dict().items()}
    made = getattr(torch.optim, kind)(net.parameters(), **options)
    rates = torch.optim.lr_scheduler.LambdaLR(made, fall.factor)
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(ema or 0.0))
    for _ in range(3):
        for x, y in zip(X.split(2), Y.split(2), strict=True):
            made.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            made.step()
            rates.step()
            averaged.update_parameters(net)
    for name, value in (net if ema is None else averaged.module).state_dict().items():
        assert torch.allclose(before[name] + moved[name], value, atol=1e-6)
    one = torch.optim.SGD([torch.zeros(1)], 1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(one, 4)
    for step in range(5):
        assert fall.factor(step) == pytest.approx(cosine.get_last_lr()[0], abs=1e-9)
        one.step()
        cosine.step()


@pytest.mark.parametrize(
    ("said", "meant"), [([1, 0.5], (1.0, 0.5)), ({"cosine": 10, "least": 0.1}, CosineRate(cosine=10, least=0.1))]
)
def test_a_plan_says_it_and_a_wrong_one_is_told(said: object, meant: object) -> None:
    long = {"local-training": {"optimiser": {"sgd": {"lr": 0.1}}, "schedule": said, "ema": 0.99}}
    made = resolve(CLIENTS, long, "clients[0]").value
    assert made == LocalTraining(optimiser=SGD(lr=0.1), schedule=meant, ema=0.99)
    assert made.linear(4) == LocalTraining(optimiser=SGD(lr=0.1), schedule=meant).linear(4)
    short = resolve(CLIENTS, {"fedavg": {"lr": 0.1, "schedule": said, "epochs": 2}}, "clients[0]").value
    assert short == LocalTraining(optimiser=SGD(lr=0.1), schedule=meant, epochs=2)
    assert short.linear(4).weights[0] == pytest.approx(-0.1)
    assert short.linear(4).weights[1] > -0.1
    assert made.with_loop(lambda loop: replace(loop, epochs=2)).linear(4) is None
    for wrong in ({"cosine": 0}, [-1.0], {"cosine": 3, "steps": 2}, "cosine"):
        with pytest.raises(InputError, match="schedule"):
            resolve(CLIENTS, {"fedavg": {"schedule": wrong}}, "clients[0]")
