"""Networks without shortcuts and ResNets: parameter counts, output shapes, and what their layers are."""

from __future__ import annotations

import pytest
import torch
from reproduce.resnets import resnet18_imagenet, resnet34, resnet50, resnet50_imagenet
from torch import nn

from cases import SPEC
from leakgauge.errors import InputError
from leakgauge.models import (
    convnet,
    lenet,
    mlp,
    resnet18,
    resnet20,
    small_convnet,
)
from leakgauge.models.networks import vgg, vgg16
from leakgauge.registry import MODELS
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.tracing import is_smooth

RGB = DataSpec((3, 32, 32), 10)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lenet, 15_826),
        (convnet, 2_904_970),
        (resnet20, 4_327_754),
        (lambda: resnet20(width=16), 272_474),
        (resnet18, 11_173_962),
        (resnet34, 21_282_122),
        (resnet50, 23_520_842),
        (mlp, 197_322),
    ],
    ids=[
        "lenet",
        "convnet-64",
        "resnet20-4",
        "resnet20-16",
        "resnet18",
        "resnet34",
        "resnet50",
        "mlp",
    ],
)
def test_parameters_and_outputs(build, count: int) -> None:
    net = build().eval()
    assert sum(p.numel() for p in net.parameters()) == count
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("build", "count"),
    [(resnet18_imagenet, 11_689_512), (resnet50_imagenet, 25_557_032)],
)
def test_imagenet_networks_have_the_published_counts_and_names(build, count: int) -> None:
    with torch.device("meta"):
        net = build()
        assert net(torch.empty(1, 3, 224, 224)).shape == (1, 1000)
    assert sum(p.numel() for p in net.parameters()) == count
    assert {"conv1.weight", "layer1.0.bn1.weight", "layer2.0.downsample.1.bias", "fc.bias"} <= set(net.state_dict())


@pytest.mark.parametrize("entry", list(MODELS), ids=lambda e: e.name)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 16)])
def test_every_model_fits_other_sizes_channels_and_classes(entry, channels: int, size: int) -> None:
    options = {"classes": 7, "channels": channels, "size": size, "shape": (channels, size, size)}
    accepted = {k: v for k, v in options.items() if k in entry.parameters}
    task = Task.of(entry.build(**accepted), DataSpec((channels, size, size), 7))
    assert task.outputs == 7


def test_lenet_is_drawn_uniformly() -> None:
    torch.manual_seed(0)
    flat = torch.cat([p.detach().flatten() for p in lenet().parameters()])
    assert float(flat.abs().max()) <= 0.5
    assert float(flat.std()) == pytest.approx(3**-0.5 / 2, rel=0.02)


@pytest.mark.parametrize(
    ("build", "smooth"),
    [
        (lenet, True),
        (lambda: lenet(activation="tanh"), True),
        (lambda: lenet(activation="relu"), False),
        (lambda: convnet(width=2), False),
        (lambda: resnet20(width=2), False),
        (lambda: resnet20(width=2, activation="sigmoid"), True),
        (mlp, False),
        (lambda: mlp(activation="sigmoid"), True),
    ],
)
def test_smoothness_is_measured_and_sees_kinks(build, smooth: bool) -> None:
    torch.manual_seed(0)
    task = Task.of(build(), RGB)
    assert all(is_smooth(task, torch.Generator().manual_seed(s)) is smooth for s in range(3))


def test_a_kink_in_code_is_seen_too() -> None:
    class Functional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(192, 16), torch.nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.nn.functional.relu(self.one(x.flatten(1))))

    torch.manual_seed(0)
    assert not is_smooth(Task.of(Functional(), SPEC), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.TRAIN])
def test_smoothness_of_large_pictures_is_measured_through_batchnorm(mode: Mode) -> None:
    """Memory leaves room for one of them, which BatchNorm in train mode refuses."""
    torch.manual_seed(0)
    small = (torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.BatchNorm1d(8))
    model = torch.nn.Sequential(*small, torch.nn.Sigmoid(), torch.nn.Linear(8, 5))
    large = Task.of(model, DataSpec((3, 128, 128), 5), mode=mode)
    assert is_smooth(large, torch.Generator().manual_seed(0))


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_small_convnet_has_its_parameters_and_outputs() -> None:
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
