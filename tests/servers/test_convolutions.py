"""Crafted convolutions against the pooling that they stand for, in the real network."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from reproduce.mkor.pooled import features as computed
from reproduce.mkor.quiet import QuietTaps
from reproduce.mkor.variants import BlockTaps
from torch import Tensor, nn

from leakgauge.data.extras import Parquet
from leakgauge.errors import InputError
from leakgauge.models.networks import vgg, vgg16
from leakgauge.servers.convolutions import PublishedTaps
from leakgauge.servers.mkor import Crafter, FeatureMap
from leakgauge.servers.network import linear_stack
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.tensors import Tensors

BLOCKS = ((32, 32), (64, 64), (128, 128))
NORMALISED = {"mean": (0.4, 0.5, 0.6), "std": (0.25, 0.2, 0.3)}


def task(size: int = 32, channels: int = 3, mode: Mode = Mode.EVAL, data=None, blocks=BLOCKS, **options) -> Task:
    torch.manual_seed(0)
    net = vgg(classes=4, channels=channels, size=size, blocks=blocks, hidden=(8,), **options)
    return Task.of(net, DataSpec((channels, size, size), 4, **(data or {})), mode=mode)


class Crafted(NamedTuple):
    state: Tensors
    map: FeatureMap


def craft(honest: Task, taps: Crafter[FeatureMap] | None = None, seed: int = 0) -> Crafted:
    return Crafted(*(taps or PublishedTaps()).craft(honest, torch.Generator().manual_seed(seed)))


def images(spec: DataSpec, count: int = 4) -> Tensor:
    shape = (count, *spec.shape)
    return spec.low + spec.range * torch.rand(shape, generator=torch.Generator().manual_seed(7))


def read(honest: Task, crafted: Crafted, inputs: Tensor) -> Tensor:
    """What the client's own network gives its first linear layer, at the positions that are read."""
    sent = honest.with_state(crafted.state)
    got: list[Tensor] = []
    layer = sent.module.get_submodule(linear_stack(honest)[0].name)
    handle = layer.register_forward_pre_hook(lambda _, given: got.append(given[0].detach()))
    with torch.no_grad():
        sent.logits(sent.parameters, sent.buffers, inputs)
    handle.remove()
    return got[0][:, crafted.map.positions]


def error(honest: Task, crafted: Crafted) -> float:
    """Relative, over all features."""
    x = images(honest.data)
    want = computed(crafted.map, x).double()
    return float((read(honest, crafted, x).double() - want).norm() / want.norm())


def oblong() -> nn.Module:
    """Kernels of five on images that are not square."""
    layers = [nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 6, 4))


EXACT = {
    "zeros": lambda: task(),
    "replicate": lambda: task(padding_mode="replicate"),
    "grey": lambda: task(channels=1),
    "64-px": lambda: task(64),
    "odd": lambda: task(27),
    "oblong": lambda: Task.of(oblong(), DataSpec((3, 8, 12), 4)),
    "double": lambda: task().to(torch.zeros((), dtype=torch.float64)),
    "low-high": lambda: task(data={"low": -1.0, "high": 3.0}),
}


@pytest.mark.parametrize("taps", [PublishedTaps(), QuietTaps(), PublishedTaps(directions=1)], ids=repr)
@pytest.mark.parametrize("name", EXACT)
def test_the_network_computes_the_pooling_bit_by_bit(name: str, taps: Crafter[FeatureMap]) -> None:
    honest = EXACT[name]()
    crafted = craft(honest, taps)
    assert honest.with_state(crafted.state).parameters.keys() == honest.parameters.keys()
    x = images(honest.data).to(next(iter(honest.parameters.values())))
    assert torch.equal(read(honest, crafted, x), computed(crafted.map, x))


@pytest.mark.parametrize("options", [{}, {"padding_mode": "replicate"}], ids=str)
@pytest.mark.parametrize("taps", [PublishedTaps(), QuietTaps(beta=1.0), QuietTaps(beta=30.0)], ids=repr)
def test_normalisation_and_gains_are_undone(options, taps: Crafter[FeatureMap]) -> None:
    honest = task(data=NORMALISED | {"low": -0.5, "high": 2.0}, **options)
    crafted = craft(honest, taps)
    assert error(honest, crafted) < 1e-6
    x = images(honest.data)
    got = crafted.map.images(read(honest, crafted, x))
    torch.testing.assert_close(got, crafted.map.images(computed(crafted.map, x)), rtol=0, atol=1e-5)
    plain = craft(task(data={"low": -0.5, "high": 2.0}, **options))
    torch.testing.assert_close(got, plain.map.images(computed(plain.map, x)), rtol=0, atol=1e-5)


def test_the_equation_leaks_what_the_release_does_not() -> None:
    honest = task()
    assert error(honest, craft(honest, PublishedTaps())) == 0
    assert 0.05 < error(honest, craft(honest, BlockTaps())) < 1


def test_crafting_is_pure_and_reproducible() -> None:
    honest = task()
    before = {k: v.clone() for k, v in honest.parameters.items()}
    one, two = (craft(honest, QuietTaps(noise=0.1)) for _ in range(2))
    assert all(torch.equal(v, honest.parameters[k]) for k, v in before.items())
    assert all(torch.equal(v, two.state[k]) for k, v in one.state.items())
    assert one.state.keys() <= honest.parameters.keys()


def test_narrow_layers_give_up_minima_then_refuse() -> None:
    maxima = craft(task(size=8, blocks=((4, 5),)))
    assert "too narrow" in maxima.map.remark
    assert not maxima.map.minima
    with pytest.raises(InputError, match=r"features\.2' has 2 channels"):
        craft(task(size=8, blocks=((4, 2),)))
    with pytest.raises(InputError, match="has no bias"):
        craft(task(bias=False))
    with pytest.raises(InputError, match="room for 2"):
        craft(task(), PublishedTaps(directions=3))
    with pytest.raises(InputError, match="beta"):
        QuietTaps(beta=-1.0)


@pytest.mark.slow
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_vgg16_on_photos_is_exact(shared: Path, padding_mode: str) -> None:
    torch.manual_seed(0)
    net = vgg16(hidden=8, padding_mode=padding_mode)
    honest = Task.of(net, DataSpec((3, 224, 224), 10))
    x = Parquet(path=str(shared / "data" / "imagenet-sample-256.parquet"), size=224).read([0, 500]).inputs
    crafted = craft(honest)
    assert torch.equal(read(honest, crafted, x), computed(crafted.map, x))
