"""Convolutional chains as traced: every layer by name, and every misfit named with its reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leakgauge.errors import InputError
from leakgauge.models import lenet, resnet20
from leakgauge.models.networks import vgg16
from leakgauge.servers import MKOR
from leakgauge.servers.network import Stage, chain
from leakgauge.task import DataSpec, Mode, Task

SPEC = DataSpec((3, 8, 8), 5)


def read(module: nn.Module, spec: DataSpec = SPEC) -> tuple[tuple[Stage, ...], tuple[int, int, int]]:
    return chain(Task.of(module, spec))


class Functional(nn.Module):
    """The same network as `modules`, with functions; the linear layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6 * 2 * 2, 5)
        self.second = nn.Conv2d(4, 6, 3, padding="same", padding_mode="replicate")
        self.first = nn.Conv2d(3, 4, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.dropout(x, 0.25, self.training)
        x = torch.relu(F.max_pool2d(self.second(x), kernel_size=2, stride=2))
        x = F.adaptive_avg_pool2d(x, (2, 2))
        return self.last(x.view(x.size(0), -1))


def test_functions_count_as_modules() -> None:
    (one, two), flat_shape = read(Functional())
    assert (one.name, one.weight, one.bias) == ("first", "first.weight", "first.bias")
    assert (one.inputs, one.outputs, one.kernel, one.size, one.relu, one.pool) == (3, 4, 5, (8, 8), True, 2)
    assert (two.name, two.size, two.relu, two.pool) == ("second", (4, 4), True, 2)
    assert flat_shape == (6, 2, 2)


@pytest.mark.parametrize(
    "net",
    [
        Functional(),
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(256, 5)),
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(256, 5)),
    ],
    ids=["function", "channels", "features"],
)
def test_dropout_counts_in_train_mode_alone(net: nn.Module) -> None:
    assert read(net)[0]
    with pytest.raises(InputError, match="dropout in train mode"):
        MKOR().broadcast(Task.of(net, SPEC, mode=Mode.TRAIN), torch.Generator())


def test_vgg16_is_read_whole() -> None:
    stages, _ = read(vgg16(size=64, width=0.05, hidden=8), DataSpec((3, 64, 64), 10))
    assert [stage.name for stage in stages] == [
        f"features.{i}" for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    ]
    assert [i for i, stage in enumerate(stages, 1) if stage.pool == 2] == [2, 4, 7, 10, 13]


def test_pools_of_other_sides_multiply() -> None:
    twice = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 5))
    assert read(twice)[0][0].pool == 4


def flat(*layers: nn.Module, units: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(units, 5))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.linear = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Linear(256, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(F.relu(self.a(x)).maximum(self.b(x)).flatten(1))


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 3, 1), nn.Linear(192, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(self.conv(x).relu()).relu().flatten(1))


class Mixed(nn.Module):
    """Flattens the batch into the features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 1), nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.conv(x).reshape(x.shape[0], -1, 64)).mean(1)


MISFITS = [
    (lenet(size=8, classes=5), "layer '0' has stride"),
    (flat(nn.Conv2d(3, 4, 3, padding=1), nn.Sigmoid(), units=256), "'sigmoid' behind layer '0'"),
    (flat(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), units=64), "'avg_pool2d' behind layer '0'"),
    (flat(nn.Conv2d(3, 4, 3), units=144), "does not keep the spatial size"),
    (flat(nn.Conv2d(3, 4, (1, 3), padding=(0, 1)), units=256), "no odd square kernel"),
    (flat(nn.Conv2d(3, 3, 3, padding=1, groups=3), units=192), "grouped"),
    (flat(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), units=256), "reflection_pad2d"),
    (flat(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), units=256), "joins several tensors"),
    (flat(nn.Conv2d(3, 4, 1), nn.MaxPool2d(3, 2, 1), units=64), "overlaps, pads or rounds up"),
    (flat(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(4), units=64), "only the identity"),
    (flat(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), units=4), "only the identity"),
    (flat(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), units=256), "without a ReLU"),
    (flat(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), units=256), "not one of the layers"),
    (flat(nn.MaxPool2d(2), nn.Conv2d(3, 4, 1), units=64), "before the first convolution"),
    (flat(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 1)), units=256), "computed from other parameters"),
    (nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), "no convolution before its linear layers"),
    (nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten()), "'adaptive_max_pool2d'"),
    (nn.Sequential(nn.Conv2d(3, 5, 1), nn.MaxPool2d(8), nn.Flatten()), "has no linear layer"),
    (Branch(), "'maximum' joins several tensors"),
    (Shared(), "is used twice"),
    (Mixed(), "does not flatten all axes but the first"),
    (resnet20(width=2, classes=5), "is no chain of layers"),
]


@pytest.mark.parametrize(("module", "reason"), MISFITS, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_misfits_say_where_and_why(module: nn.Module, reason: str) -> None:
    with pytest.raises(InputError) as caught:
        read(module)
    assert caught.value.field == "model"
    assert reason in caught.value.problem
