"""LeNet-5 and the modified network, layer by layer against functions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reproduce.mkor.identity import modified_lenet5

from leakgauge.errors import InputError
from leakgauge.models import lenet5


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_lenet5_computes_the_stated_layers(padding_mode: str) -> None:
    torch.manual_seed(0)
    net = lenet5(padding_mode=padding_mode)
    p, x = dict(net.named_parameters()), torch.rand(3, 1, 28, 28)
    padded = F.pad(x, (2, 2, 2, 2), mode="constant" if padding_mode == "zeros" else "replicate")
    h = F.avg_pool2d(F.conv2d(padded, p["conv1.weight"], p["conv1.bias"]).sigmoid(), 2)
    h = F.avg_pool2d(F.conv2d(h, p["conv2.weight"], p["conv2.bias"]).sigmoid(), 2).flatten(1)
    assert h.shape == (3, 400)
    h = (h @ p["fc1.weight"].T + p["fc1.bias"]).sigmoid()
    h = (h @ p["fc2.weight"].T + p["fc2.bias"]).sigmoid()
    assert torch.allclose(net(x), h @ p["fc3.weight"].T + p["fc3.bias"], atol=1e-6)


def test_parameter_counts() -> None:
    assert count(lenet5()) == 61_706
    assert count(modified_lenet5()) == 7_902
    assert lenet5(channels=3, size=32, filters=(12, 48)).conv2.weight.shape == (48, 12, 5, 5)


def test_an_image_too_small_for_two_pools_is_refused() -> None:
    assert lenet5(size=16)(torch.rand(1, 1, 16, 16)).shape == (1, 10)
    with pytest.raises(InputError, match="16 pixels"):
        lenet5(size=15)
