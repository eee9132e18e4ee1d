"""ROG's networks by count and shape, and the autoencoder of its ablation."""

from __future__ import annotations

import pytest
import torch
from reproduce.rog.autoencoder import Autoencoder, fit_autoencoder
from reproduce.rog.networks import rog_lenet, rog_resnet18, rog_vgg7
from torch import nn

from leakgauge.errors import InputError


@pytest.mark.parametrize(
    ("build", "count", "first"),
    [
        # By hand: convolutions with bias (ResNet: without), linear layers without.
        (rog_lenet, (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + 65536 * 512 + 512 * 1000, 65536 * 512),
        (
            rog_vgg7,
            sum((a * 9 + 1) * b for a, b in [(3, 128), (128, 128), (128, 256), (256, 256), (256, 512), (512, 512)])
            + 131072 * 1024
            + 1024 * 1000,
            131072 * 1024,
        ),
        (
            rog_resnet18,
            3 * 49 * 64
            + 4 * 64 * 64 * 9
            + sum((a + 3 * b) * b * 9 + a * b for a, b in [(64, 128), (128, 256), (256, 512)])
            + 32768 * 1000,
            32768 * 1000,
        ),
    ],
    ids=["lenet", "vgg7", "resnet18"],
)
def test_counts_at_128_px(build, count: int, first: int) -> None:
    with torch.device("meta"):
        net = build()
        assert net(torch.empty(2, 3, 128, 128)).shape == (2, 1000)
    assert sum(p.numel() for p in net.parameters()) == count
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]
    assert linear[0].weight.numel() == first
    assert all(m.bias is None for m in linear)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in net.modules())


def test_published_counts_in_millions() -> None:
    with torch.device("meta"):
        found = [sum(p.numel() for p in build().parameters()) // 10**5 for build in (rog_lenet, rog_vgg7, rog_resnet18)]
    assert found == [341, 1398, 439]


@pytest.mark.parametrize(("code", "size", "numbers"), [(32, 128, 8192), (8, 128, 2048), (2, 128, 512), (12, 32, 192)])
def test_codes_have_the_published_lengths(code: int, size: int, numbers: int) -> None:
    net = Autoencoder(code=code, width=4)
    shape = net.code_shape(size)
    assert torch.Size(shape).numel() == numbers
    x = torch.rand(1, 3, size, size)
    assert net.encoder(x).shape == (1, *shape)
    assert net(x).shape == x.shape
    with pytest.raises(InputError, match="multiple of 8"):
        net.code_shape(30)


def test_an_autoencoder_learns_and_the_seed_decides() -> None:
    pictures = torch.rand(32, 3, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 8, 8)

    def run(seed: int, steps: int) -> tuple[Autoencoder, list[float]]:
        torch.manual_seed(0)
        net = Autoencoder(code=8, width=8, halvings=1)
        history = fit_autoencoder(
            net, pictures, torch.Generator().manual_seed(seed), steps=steps, batch_size=16, lr=1e-2
        )
        return net, history

    net, history = run(1, 100)
    with torch.no_grad():
        assert float((net(pictures) - pictures).square().mean()) < 0.3 * float(pictures.var())
    assert not net.training
    assert len(history) == 100
    again, other = run(1, 5)[1], run(2, 5)[1]
    assert again == run(1, 5)[1] != other
