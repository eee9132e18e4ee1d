"""VGG networks by parameter count, names, and what their options do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.models.feedforward import vgg, vgg16


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_vgg16_has_the_published_parameters_and_torchvisions_names() -> None:
    with torch.device("meta"):
        net = vgg16(classes=1000)
    assert count(net) == 138_357_544
    weights = [name for name, p in net.named_parameters() if p.ndim > 1]
    convolutions = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    assert weights == [f"features.{i}.weight" for i in convolutions] + [f"classifier.{i}.weight" for i in (0, 3, 6)]
    assert net.classifier[0].in_features == 25_088


def test_batch_norm_has_torchvisions_names_and_parameters() -> None:
    with torch.device("meta"):
        net = vgg16(classes=1000, batch_norm=True)
    assert count(net) == 138_365_992
    assert [i for i, m in enumerate(net.features) if isinstance(m, nn.Conv2d)][:4] == [0, 3, 7, 10]


@pytest.mark.parametrize(("size", "parameters"), [(32, 814_122), (64, 2_386_986)])
def test_the_small_one_at_two_sizes(size: int, parameters: int) -> None:
    net = vgg(size=size).eval()
    assert count(net) == parameters
    assert net(torch.rand(2, 3, size, size)).shape == (2, 10)


@pytest.mark.parametrize("size", [7, 28, 40])
def test_average_pooling_is_the_identity(size: int) -> None:
    net = vgg16(size=size, width=0.05, hidden=8).eval()
    left = net.features(torch.rand(2, 3, size, size))
    assert torch.equal(net.avgpool(left), left)


def test_options_reach_the_layers() -> None:
    options = {"classes": 4, "channels": 1, "size": 16, "bias": False, "padding_mode": "replicate", "dropout": 0.3}
    net = vgg(blocks=((4, 5), (6,)), hidden=(7, 8), batch_norm=True, **options)
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == [(1, 4), (4, 5), (5, 6)]
    assert all(c.bias is None and c.padding_mode == "replicate" for c in convolutions)
    assert [m.out_features for m in net.modules() if isinstance(m, nn.Linear)] == [7, 8, 4]
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.3, 0.3]
    half = vgg16(width=0.25, hidden=32, size=32)
    assert [m.out_channels for m in half.modules() if isinstance(m, nn.Conv2d)][::4] == [16, 64, 128, 128]
