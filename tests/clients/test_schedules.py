"""A learning rate that changes from step to step is torch's, and no closed form is claimed for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.clients import SGD, Adam, LocalTraining, Optimiser, client_update
from leakgauge.clients.optimisers import RateSchedule
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve
from leakgauge.task import Batch, DataSpec, Task

X, Y = torch.rand(6, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(
    ("inner", "kind", "options"),
    [(SGD(lr=0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}), (Adam(lr=0.01), "Adam", {"lr": 0.01})],
)
def test_a_cosine_is_torchs(inner: Optimiser, kind: str, options: dict[str, float]) -> None:
    torch.manual_seed(0)
    net = nn.Linear(5, 3)
    task = Task.of(net, DataSpec((5,), 3))
    client = LocalTraining(optimiser=RateSchedule(optimiser=inner, cosine=4, least=0.0), epochs=3, batch_size=2)
    moved = client_update(task, client, Batch(X, Y), Draws(0)).tensors
    before = {k: v.clone() for k, v in net.state_dict().items()}
    made = getattr(torch.optim, kind)(net.parameters(), **options)
    rates = torch.optim.lr_scheduler.LambdaLR(made, client.optimiser.factor)
    for _ in range(3):
        for x, y in zip(X.split(2), Y.split(2), strict=True):
            made.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            made.step()
            rates.step()
    for name, value in net.state_dict().items():
        assert torch.allclose(before[name] + moved[name], value, atol=1e-6)
    one = torch.optim.SGD([torch.zeros(1)], 1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(one, 4)
    for step in range(5):
        assert client.optimiser.factor(step) == pytest.approx(cosine.get_last_lr()[0], abs=1e-9)
        one.step()
        cosine.step()


def test_a_plan_says_it_and_a_wrong_one_is_told() -> None:
    said = {"local-training": {"optimiser": {"scheduled": {"optimiser": {"sgd": {"lr": 0.1}}, "rates": [1, 0.5]}}}}
    made = resolve(CLIENTS, said, "clients[0]").value.optimiser
    assert made == RateSchedule(optimiser=SGD(lr=0.1), rates=(1.0, 0.5))
    assert not isinstance(made, SGD)
    assert made.with_rate(0.2).optimiser.lr == 0.2
    with pytest.raises(InputError, match="exactly one of the two"):
        RateSchedule(rates=(1.0,), cosine=3)
