"""Counts of any model, layer by layer."""

from __future__ import annotations

import torch
from reproduce.qian_hansen.networks import one_convolution, one_hidden_layer
from torch import Tensor, nn

from leakgauge.models import mlp
from leakgauge.risk.jacobian import ModelCount, count_layers, random_batch, update_rank
from leakgauge.task import DataSpec, Task

SMALL = DataSpec((3, 8, 8), 5)


def counted(net: nn.Module, batch: int = 2, data: DataSpec = SMALL, **options) -> ModelCount:
    return count_layers(Task.of(net, data), batch, **options)


def test_layers_of_the_papers_networks() -> None:
    found = counted(one_convolution(classes=5, size=8, filters=4))
    assert [(x.name, x.kind, x.equations, x.unknowns) for x in found.layers] == [
        ("0", "convolution", 4 * 76, 2 * 192),
        ("3", "linear", 5 * 65, 2 * 64),
    ]
    # Errors of the last layer sum to zero over 5 classes, and two examples make a matrix of rank two: 2·(4 + 65 − 2).
    assert found.layers[1].independent == 134
    linear = counted(one_hidden_layer(classes=5, shape=(3, 8, 8), units=6))
    assert linear.unknowns == 384
    assert counted(one_hidden_layer(classes=5, shape=(3, 8, 8), units=6), soft_labels=True).unknowns == 384 + 8


class Skip(nn.Module):
    """The input reaches the head past the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 2), nn.Linear(14, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.first(x).sigmoid(), x], 1))


class Twice(nn.Module):
    """One layer, used twice, and a parameter that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(12, 12), nn.Linear(12, 3)
        self.shift = nn.Parameter(torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.shared(self.shared(x).sigmoid() + self.shift).sigmoid())


def test_the_bound_holds_where_the_first_layer_is_no_gate() -> None:
    data = DataSpec((12,), 3)
    for net in (Skip(), Twice()):
        task = Task.of(net.double(), data)
        found = count_layers(task, 3)
        assert not found.gate
        assert found.equations == sum(p.numel() for p in net.parameters())
        generator = torch.Generator().manual_seed(0)
        rank = update_rank(task, random_batch(task, 3, generator), generator)
        assert rank is not None
        assert rank.rank <= found.bound
    assert counted(mlp(classes=3, shape=(12,), hidden=(2,)), data=data).gate


def test_frozen_layers_send_nothing() -> None:
    net = one_hidden_layer(classes=3, shape=(12,), units=2)
    for parameter in net[1].parameters():
        parameter.requires_grad_(False)
    found = counted(net, data=DataSpec((12,), 3))
    assert [layer.name for layer in found.layers] == ["3"]
    assert found.equations == 9
