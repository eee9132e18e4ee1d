"""Networks that make pictures: CI-Net's generator and ROG's denoiser."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reproduce.ci_net.rivals import DCGANGenerator, DeepImagePrior
from safetensors.torch import save_file
from torch import nn

from leakgauge.errors import InputError
from leakgauge.models.generators import (
    CINetGenerator,
    DenoisingUNet,
    parameter_count,
    published_width,
    read_denoiser,
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


def small(classes: int = 0, seed: int = 0) -> DenoisingUNet:
    """Width 4, with norms that are not the identity."""
    torch.manual_seed(seed)
    network = DenoisingUNet(width=4, classes=classes)
    for name, parameter in network.named_parameters():
        if "_norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    for name, buffer in network.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return network.eval()


def counted(width: int) -> int:
    """By hand: each convolution's kernel × in × out, the two biases, and six BatchNorms of two numbers a channel."""
    w = width
    first = 25 * 3 * w + w
    down = 9 * (w * 2 * w + 2 * w * 4 * w + 4 * w * 8 * w)
    up = 16 * (8 * w * 4 * w + 4 * w * 2 * w + 2 * w * w)
    mix = 9 * (8 * w * 4 * w + 4 * w * 2 * w + (w + 3) * w)
    norms = 2 * 2 * (4 * w + 2 * w + w)
    return first + down + up + mix + norms + 9 * w * 3 + 3


@pytest.mark.parametrize(("width", "total"), [(64, 5_822_339), (32, 1_458_115), (24, 821_139), (1, None)])
def test_parameters_are_counted_by_hand(width: int, total: int | None) -> None:
    found = sum(p.numel() for p in DenoisingUNet(width=width).parameters())
    assert found == counted(width)
    assert total in (None, found)


def test_the_twin_has_a_scale_and_a_shift_for_each_class() -> None:
    plain, twin = (sum(p.numel() for p in DenoisingUNet(width=8, classes=c).parameters()) for c in (0, 10))
    assert twin - plain == (10 - 1) * 2 * 2 * (32 + 16 + 8)


@pytest.mark.parametrize("size", [(32, 32), (64, 40), (33, 47), (8, 8), (5, 70)])
def test_any_size_comes_back(size: tuple[int, int]) -> None:
    made = small()(torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))).detach()
    assert made.shape == (2, 3, *size)
    assert 0 <= float(made.min()) < float(made.max()) <= 1


def test_other_sizes_are_those_of_the_picture_with_its_edge_repeated() -> None:
    image = torch.rand(1, 3, 13, 18, generator=torch.Generator().manual_seed(0))
    padded = F.pad(image, (0, 6, 0, 3), mode="replicate")
    torch.testing.assert_close(small()(image), small()(padded)[..., :13, :18])


def test_a_picture_is_treated_alone() -> None:
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    network = small()
    torch.testing.assert_close(network(images)[2:3], network(images[2:3]), atol=1e-5, rtol=1e-5)


def test_the_encoder_normalises_each_picture_as_instance_norm() -> None:
    network = small()
    seen = []
    network.down[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network.down[0].register_forward_hook(lambda _, __, output: seen.append(F.instance_norm(output).relu()))
    network(torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)


def test_the_label_is_used() -> None:
    """What the published code computes and discards."""
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).repeat(2, 1, 1, 1)
    made = small(classes=3)(image, torch.tensor([0, 2]))
    assert float((made[0] - made[1]).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("classes", [0, 3])
def test_labels_go_to_a_conditional_network_and_to_no_other(classes: int) -> None:
    labels = None if classes else torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InputError, match="labels"):
        small(classes)(torch.rand(1, 3, 8, 8), labels)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_file_says_which_network_it_is(tmp_path: Path, classes: int) -> None:
    network = small(classes)
    save_file(
        {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()},
        tmp_path / "a.safetensors",
    )
    read = read_denoiser(tmp_path / "a.safetensors")
    assert (read.width, read.classes, read.training) == (4, classes, False)
    assert {p.dtype for p in read.parameters()} == {torch.float32}
    for name, value in network.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], value, atol=1e-3, rtol=1e-3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="holds no denoiser"):
        read_denoiser(tmp_path / "a.safetensors")
    cut = {k: v for k, v in small().state_dict().items() if not k.startswith("picture")}
    save_file(cut, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match=r"missing picture.weight"):
        read_denoiser(tmp_path / "b.safetensors")
    (tmp_path / "c.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read"):
        read_denoiser(tmp_path / "c.safetensors")


@pytest.mark.parametrize(("changes", "word"), [({"width": 0}, "width"), ({"classes": -1}, "classes")])
def test_settings_are_checked(changes: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        DenoisingUNet(**changes)
