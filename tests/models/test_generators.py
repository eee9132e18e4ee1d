"""Networks that make pictures: CI-Net's generator."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reproduce.ci_net.rivals import DCGANGenerator, DeepImagePrior
from torch import nn

from leakgauge.errors import InputError
from leakgauge.models.networks import (
    CINetGenerator,
    parameter_count,
    published_width,
    spectral,
    stages,
)


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("width", "count"), [(32, 140_227), (64, 427_907), (128, 1_445_635), (256, 5_250_563), (512, 19_938_307)]
)
def test_the_published_parameter_counts(width: int, count: int) -> None:
    assert parameter_count(width) == count


def twin(weights: dict[str, torch.Tensor], width: int, size: int, channels: int = 3) -> nn.Sequential:
    """CI-Net's generator as modules, without spectral norm: its weights are divided beforehand."""
    layers: list[nn.Module] = [nn.ConvTranspose2d(128, width, 4), nn.BatchNorm2d(width), nn.LeakyReLU(0.1)]
    names, before, side, stage = ["core"], width, 4, 0
    while side <= size:
        after = {64: width // 2, 128: width // 4, 256: width // 4}.get(side, width)
        layers += [nn.Upsample(scale_factor=2, mode="nearest")] if stage else []
        for layer in (0, 1):
            conv = nn.Conv2d(before, after, 3, padding=1)
            layers += [conv, nn.BatchNorm2d(after), nn.LeakyReLU(0.1)]
            names.append(f"{stage}.{layer}")
            before = after
        side, stage = 2 * side, stage + 1
    layers += [nn.Conv2d(before, channels, 1), nn.Tanh()]
    names.append("picture")
    net = nn.Sequential(*layers).double().train()
    convolutions = [m for m in net if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    for name, conv in zip(names, convolutions, strict=True):
        weight = weights[name]
        if name not in ("core", "picture"):
            weight = weight / torch.linalg.svdvals(weight.flatten(1))[0]
        conv.weight.data, conv.bias.data = weight, weights[f"{name}.bias"]
    for name, norm in zip(names, [m for m in net if isinstance(m, nn.BatchNorm2d)], strict=False):
        norm.weight.data, norm.bias.data = weights[f"{name}.scale"], weights[f"{name}.shift"]
    return net


@pytest.mark.parametrize(("size", "width"), [(4, 8), (32, 8), (128, 4)])
def test_the_generator_is_its_twin(size: int, width: int) -> None:
    network = CINetGenerator(width=width)
    weights = {k: v + 0.1 for k, v in network.weights(2, 3, size, draws()).items()}
    code = network.code(2, size, draws(1))
    made = network(weights, code)
    net = twin(weights, width, size)
    assert sum(p.numel() for p in net.parameters()) == sum(w.numel() for w in weights.values())
    assert made.shape == (2, 3, size, size)
    torch.testing.assert_close(made, net(code[:, :, None, None]), rtol=1e-8, atol=1e-10)


def test_spectral_norm_leaves_a_largest_singular_value_of_one_and_an_exact_derivative() -> None:
    weight = torch.randn(4, 3, 3, 3, generator=draws(), dtype=torch.float64)
    assert float(torch.linalg.svdvals(spectral(weight).flatten(1))[0]) == pytest.approx(1, abs=1e-12)
    slow = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3).double(), n_power_iterations=200)
    slow.parametrizations.weight.original.data.copy_(weight)
    slow(torch.zeros(1, 3, 4, 4, dtype=torch.float64))
    torch.testing.assert_close(spectral(weight), slow.weight, rtol=1e-6, atol=1e-8)
    assert torch.autograd.gradcheck(spectral, (weight.requires_grad_(),))


def test_spectral_norm_before_batch_norm_changes_nothing() -> None:
    weight = torch.randn(6, 3, 3, 3, generator=draws(), dtype=torch.float64)
    x = torch.randn(4, 3, 8, 8, generator=draws(1), dtype=torch.float64)
    a, b = (F.batch_norm(F.conv2d(x, w), None, None, training=True, eps=1e-14) for w in (weight, spectral(weight)))
    torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("examples", "size", "width"), [(16, 32, 32), (64, 32, 64), (128, 32, 128), (256, 32, 128), (24, 256, 512)]
)
def test_the_size_rule_of_the_code(examples: int, size: int, width: int) -> None:
    assert published_width(examples, size) == width


@pytest.mark.parametrize("network", [CINetGenerator(), DCGANGenerator(width=8), DeepImagePrior(width=8)], ids=repr)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_network_makes_pictures_and_only_from_its_draws(network, channels: int) -> None:
    weights = network.weights(2, channels, 16, draws())
    code = network.code(2, 16, draws(1))
    made = network(weights, code)
    assert made.shape == (2, channels, 16, 16)
    assert float(made.abs().max()) < 1
    assert not torch.equal(made[0], made[1])
    again = network.weights(2, channels, 16, draws())
    assert all(torch.equal(again[name], weight) for name, weight in weights.items())


def test_bad_sizes_and_widths_name_their_field() -> None:
    assert [stages(s) for s in (1, 4, 5, 8, 28, 32, 224, 256)] == [0, 0, 1, 1, 3, 3, 6, 6]
    with pytest.raises(InputError) as error:
        stages(257)
    assert error.value.field == "size"
    with pytest.raises(InputError, match="width"):
        CINetGenerator(width=2)
