"""MKOR's taps in its modified network: one linear layer reads the picture."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.identity import IdentityMap, IdentityTaps, modified_lenet5
from torch import nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers.mkor import MKOR, MKORCrafting, NLLRaw
from leakgauge.task import Batch, DataSpec, Task

FORMATS = {
    "grey": DataSpec((1, 12, 9), 4),
    "normalised": DataSpec((3, 8, 8), 4, low=-2.0, high=3.0, mean=(0.4, 0.5, 0.6), std=(0.25, 0.2, 0.3)),
}


def network(data: DataSpec) -> Task:
    torch.manual_seed(0)
    c, h, w = data.shape
    net = modified_lenet5(classes=4, channels=c, size=8)
    net.linear = nn.Linear(c * h * w, 4)
    return Task.of(net.double(), data)


def raw(data: DataSpec, n: int = 4) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return data.low + data.range * torch.rand((n, *data.shape), generator=g, dtype=torch.float64)


def read(task: Task, b: Batch):
    sent = MKOR(taps=IdentityTaps(), loss=NLLRaw()).broadcast(task, torch.Generator().manual_seed(0))
    update = client_update(sent.task, FedSGD(), b, Draws(0))
    assert isinstance(sent.crafting, MKORCrafting)
    reading = sent.crafting.classes(Observation(sent.task, update, Knowledge(example_count=len(b))))
    assert not isinstance(reading, str)
    return reading.classes, sent.crafting.map.images(reading.features)


@pytest.mark.parametrize("name", FORMATS)
def test_one_example_a_class_is_read_exactly(name: str) -> None:
    data = FORMATS[name]
    x = raw(data)
    classes, found = read(network(data), Batch(x, torch.tensor([2, 0, 3, 1])))
    assert classes.tolist() == [0, 1, 2, 3]
    assert torch.allclose(found, x[[1, 3, 0, 2]], atol=1e-9)


def test_examples_of_one_class_are_averaged() -> None:
    data = FORMATS["normalised"]
    x = raw(data)
    classes, found = read(network(data), Batch(x, torch.tensor([2, 0, 2, 2])))
    assert classes.tolist() == [0, 2]
    assert torch.allclose(found[1], x[[0, 2, 3]].mean(0), atol=1e-9)


def test_the_map_is_its_own_inverse_and_clamps() -> None:
    data = FORMATS["normalised"]
    found, x = IdentityMap(data), raw(data)
    assert torch.allclose(found.images(found.features(x)), x)
    assert float(found.features(x).min()) >= 0
    assert float(found.features(x).max()) <= 1
    assert float(found.images(torch.full((1, 192), 7.0)).max()) == data.high
