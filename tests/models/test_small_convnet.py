"""The network that trains fast: its size, its fit to pictures, and what it was made for."""

from __future__ import annotations

import pytest
import torch

from leakgauge.errors import InputError
from leakgauge.models import small_convnet
from leakgauge.task import DataSpec, Task
from leakgauge.tracing import is_smooth


def test_parameters_and_outputs() -> None:
    net = small_convnet()
    assert sum(p.numel() for p in net.parameters()) == 34_602
    assert not list(net.buffers()), "no statistics that would mix examples"


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 33), (1, 8)])
def test_it_fits_pictures_of_any_size(channels: int, size: int) -> None:
    net = small_convnet(channels=channels, size=size, classes=7, width=4)
    assert net(torch.rand(2, channels, size, size)).shape == (2, 7)


def test_it_is_smooth_and_with_relu_it_is_not() -> None:
    data = DataSpec(shape=(3, 16, 16), classes=10)
    torch.manual_seed(0)
    for activation, smooth in (("gelu", True), ("tanh", True), ("relu", False)):
        task = Task.of(small_convnet(size=16, width=4, activation=activation), data)
        assert is_smooth(task, torch.Generator().manual_seed(0)) is smooth


def test_too_small_pictures_are_refused() -> None:
    with pytest.raises(InputError, match="size"):
        small_convnet(size=7)
