"""MKOR's taps in LeNet-5: features against the real network, and back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reproduce.metrics import PSNRPeak, SSIMCropped
from reproduce.mkor.identity import modified_lenet5
from reproduce.mkor.lenet5 import LeNet5Map, LeNet5Taps, lenet5
from torch import nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Parquet
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers.mkor import MKOR, MKORCrafting, NLLRaw
from leakgauge.task import Batch, DataSpec, Task

GREY = DataSpec((1, 28, 28), 10)
FORMATS = {
    "mnist": GREY,
    "normalised": DataSpec((1, 28, 28), 10, mean=(0.1307,), std=(0.3081,)),
    "bytes": DataSpec((1, 28, 28), 10, low=0.0, high=255.0, mean=(33.0,), std=(78.0,)),
    "colour": DataSpec((3, 32, 32), 10, low=-1.0, high=1.0, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)),
    "oblong": DataSpec((1, 24, 37), 10),
}


class Oblong(nn.Module):
    """LeNet-5's convolutions for any shape, as code rather than modules."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.head = nn.Linear(16 * ((rows // 2 - 4) // 2) * ((columns // 2 - 4) // 2), 10)
        self.deep, self.shallow = nn.Conv2d(6, 16, 5), nn.Conv2d(1, 6, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.avg_pool2d(torch.sigmoid(self.shallow(x)), 2)
        return self.head(F.avg_pool2d(torch.sigmoid(self.deep(x)), 2).flatten(1))


def network(data: DataSpec, **options) -> Task:
    torch.manual_seed(0)
    channels, rows, columns = data.shape
    if rows != columns:
        return Task.of(Oblong(rows, columns).double(), data)
    return Task.of(
        lenet5(channels=channels, size=rows, filters=(6 * channels, 18 * channels), **options).double(), data
    )


def craft(task: Task, **options):
    return LeNet5Taps(**options).craft(task, torch.Generator().manual_seed(3))


def raw(data: DataSpec, n: int = 3) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return data.low + data.range * torch.rand((n, *data.shape), generator=g, dtype=torch.float64)


def into(task: Task, layer: str, inputs: torch.Tensor) -> torch.Tensor:
    seen = []
    handle = task.module.get_submodule(layer).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    task.logits(task.parameters, task.buffers, inputs)
    handle.remove()
    return seen[0].detach()


@pytest.mark.parametrize("name", FORMATS)
def test_the_shortcut_is_what_reaches_the_linear_layer(name: str) -> None:
    data = FORMATS[name]
    task = network(data)
    made, x = craft(task), raw(data)
    got = into(task.with_state(made[0]), "head" if name == "oblong" else "fc1", x)[:, made[1].positions]
    expected = made[1].features(x)
    assert float(((got - expected) / expected).abs().max()) < 1e-12
    single = task.to(torch.empty(0))
    got = into(single.with_state(made[0]), "head" if name == "oblong" else "fc1", x.float())[:, made[1].positions]
    assert float(((got - expected) / expected).abs().max()) < 1e-6


def test_a_feature_is_the_nested_mean_of_one_window() -> None:
    """The published position: direction d₁ + 4·d₂ of cell (h, w) is written to one pixel, two in from its window."""
    found, x = LeNet5Map(GREY), raw(GREY, 1)
    features = found.features(x)[0].view(16, 5, 5)
    canvas = found.images(features.view(1, -1))[0, 0]
    u, seen = x[0, 0], set()
    for d1 in range(4):
        for d2 in range(4):
            for h in range(5):
                for w in range(5):
                    row = 4 * h + 6 - d1 // 2 + 2 * (d2 // 2)
                    column = 4 * w + 6 - d1 % 2 + 2 * (d2 % 2)
                    seen.add((row, column))
                    window = u[row - 2 : row + 2, column - 2 : column + 2].sigmoid()
                    nested = window.view(2, 2, 2, 2).mean((1, 3)).sigmoid().mean()
                    assert float(features[d1 + 4 * d2, h, w]) == pytest.approx(float(nested), rel=1e-12)
                    value = torch.logit(torch.logit(nested))
                    assert float(canvas[row, column]) == pytest.approx(float(value), rel=1e-9)
    assert seen == {(r, c) for r in range(5, 25) for c in range(5, 25)}


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_come_back_exactly_where_a_window_lies_in_one(name: str) -> None:
    data = FORMATS[name]
    found = LeNet5Map(data)
    rows, columns = data.shape[1:]
    blocks = raw(data)[:, :, : rows // 4 + 1, : columns // 4 + 1]
    x = blocks.repeat_interleave(4, 2).repeat_interleave(4, 3)[:, :, :rows, :columns]
    back = found.images(found.features(x))
    m, n = found.cells
    inside = (slice(None), slice(None), slice(6, 4 * m + 5, 4), slice(6, 4 * n + 5, 4))
    assert torch.allclose(back[inside], x[inside], atol=1e-9 * data.range)
    assert not torch.allclose(back[:, :, 5 : 4 * m + 5, 5 : 4 * n + 5], x[:, :, 5 : 4 * m + 5, 5 : 4 * n + 5], atol=0.1)
    level = torch.full((1, *data.shape), data.low + 0.7 * data.range, dtype=torch.float64)
    flat = found.images(found.features(level))
    assert torch.allclose(flat[:, :, 5 : 4 * m + 5, 5 : 4 * n + 5], level[:, :, 5 : 4 * m + 5, 5 : 4 * n + 5])
    assert bool((flat[:, :, :5] == data.low).all())
    assert bool((flat[:, :, :, 4 * n + 5 :] == data.low).all())


def test_class_means_of_mnist_come_out_of_a_real_gradient(shared) -> None:
    """One random batch of 100: published averages .27 and 12.79 dB over ten; single batches spread by ±.02 and ±.4."""
    source = Parquet(path=str(shared / "data" / "mnist-test.parquet"), channels=1)
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:100].tolist()
    b = source.read(order)
    b = Batch(b.inputs.double(), b.labels)
    torch.manual_seed(0)
    honest = Task.of(lenet5().double(), GREY)
    sent = MKOR(taps=LeNet5Taps(), loss=NLLRaw()).broadcast(honest, torch.Generator().manual_seed(0))
    update = client_update(sent.task, FedSGD(), b, Draws(0))
    assert isinstance(sent.crafting, MKORCrafting)
    reading = sent.crafting.classes(Observation(sent.task, update, Knowledge(example_count=100)))
    assert not isinstance(reading, str)
    features = sent.crafting.map.features(b.inputs)
    one = features.mean(1).sigmoid()
    two = one.sigmoid()
    slope = (two * (1 - two) * one * (1 - one))[:, None]  # of the head's sigmoids: nearly, not quite, the same for all
    assert reading.classes.tolist() == list(range(10))
    for label, row in zip(reading.classes.tolist(), reading.features, strict=True):
        own = b.labels == label
        assert torch.allclose(row, (slope * features)[own].sum(0) / slope[own].sum(), rtol=1e-9)
        assert torch.allclose(row, features[own].mean(0), rtol=1e-4)
    found = torch.zeros(10, 1, 28, 28, dtype=torch.float64)
    found[reading.classes] = sent.crafting.map.images(reading.features)
    assert float(SSIMCropped()(found[b.labels], b.inputs).mean()) == pytest.approx(0.27, abs=0.04)
    assert float(PSNRPeak()(found[b.labels], b.inputs).mean()) == pytest.approx(12.8, abs=0.6)


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
    assert sum(p.numel() for p in lenet5().parameters()) == 61_706
    assert sum(p.numel() for p in modified_lenet5().parameters()) == 7_902
    assert lenet5(channels=3, size=32, filters=(12, 48)).conv2.weight.shape == (48, 12, 5, 5)


def test_an_image_too_small_for_two_pools_is_refused() -> None:
    assert lenet5(size=16)(torch.rand(1, 1, 16, 16)).shape == (1, 10)
    with pytest.raises(InputError, match="16 pixels"):
        lenet5(size=15)
