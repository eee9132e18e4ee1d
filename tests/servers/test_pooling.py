"""Features by pooling and images from them: bounds that bound, and the published inversion word by word."""

from __future__ import annotations

from itertools import product
from math import exp, prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reproduce.mkor.pooled import features as computed
from reproduce.mkor.quiet import QuietTaps
from torch import Tensor

from leakgauge.models.networks import vgg, vgg16
from leakgauge.servers.convolutions import ConvolutionStep, PooledMap, PublishedTaps, smoothed
from leakgauge.task import DataSpec, Task


def feature_map(
    size: int, *, channels: int = 3, blocks=((24, 24), (24, 24), (96, 96), (384,)), taps=None, **options
) -> PooledMap:
    spec = DataSpec((channels, size, size), 3, **options.pop("data", {}))
    net = vgg(classes=3, channels=channels, size=size, blocks=blocks, hidden=(), **options)
    _, found = (taps or PublishedTaps()).craft(Task.of(net, spec), torch.Generator().manual_seed(0))
    assert isinstance(found, PooledMap)
    return found


def raw(found: PooledMap, count: int, seed: int) -> Tensor:
    """Images of noise, of noise in patches, and of bytes."""
    g = torch.Generator().manual_seed(seed)
    shape = (count, *found.data.shape)
    kinds = [torch.rand(shape, generator=g), torch.randint(256, shape, generator=g) / 255]
    kinds.append((kinds[0] > 0.9).float())
    return found.data.low + found.data.range * kinds[seed % 3]


MAPS = {
    "colour": lambda: feature_map(32),
    "grey": lambda: feature_map(32, channels=1),
    "odd": lambda: feature_map(23, channels=1),
    "cut": lambda: feature_map(45),
    "raw-range": lambda: feature_map(32, data={"low": -2.0, "high": 5.0}),
    "shuffled-scaled": lambda: feature_map(32, taps=QuietTaps(beta=1.0)),
    "no-directions": lambda: feature_map(32, taps=PublishedTaps(directions=0)),
}


@pytest.mark.parametrize("name", MAPS)
def test_bounds_hold_for_every_covered_pixel(name: str) -> None:
    found = MAPS[name]()

    @given(st.integers(0, 2**32))
    def holds(seed: int) -> None:
        x = raw(found, 2, seed)
        u = (x - found.data.low) / found.data.range
        lower, upper, covered = found.bounds(computed(found, x))
        slack = 2e-6
        assert (lower <= u + slack)[covered].all()
        assert (u <= upper + slack)[covered].all()

    holds()
    share = float(found.bounds(computed(found, raw(found, 1, 0)))[2].double().mean())
    assert 0.9 < share < 1 if name in ("odd", "cut") else share == 1


def shifts(steps: tuple[ConvolutionStep, ...]) -> tuple[int, ...]:
    """Pixels by which each four-direction layer moves: the product of the pools before it."""
    pools = [step.stage.pool for step in steps]
    return tuple(prod(pools[:i]) for i, step in enumerate(steps) if step.directions)


def by_brute_force(found: PooledMap, features: Tensor) -> Tensor:
    """The release's inversion as it is written down, at VGG16's shifts or at any others."""
    moves = shifts(found.steps)
    channels, height, width = found.data.shape
    _, rows, columns = found.flat_shape
    z = features.reshape(-1, rows, columns).tolist()
    side = height // rows
    upper, lower = torch.ones(channels, height, width).tolist(), torch.zeros(channels, height, width).tolist()
    for ds in product(range(4), repeat=len(moves)):
        down = sum(shift * (d // 2) for shift, d in zip(moves, ds, strict=True))
        right = sum(shift * (d % 2) for shift, d in zip(moves, ds, strict=True))
        offset = sum(2 * channels * 4**i * d for i, d in enumerate(ds))
        for c, h, w in product(range(channels), range(rows), range(columns)):
            most, least = z[offset + c][h][w], 1 - z[offset + channels + c][h][w]
            for r in range(side * h + down, min(side * (h + 1) + down, height)):
                for s in range(side * w + right, min(side * (w + 1) + right, width)):
                    upper[c][r][s] = min(upper[c][r][s], most)
                    lower[c][r][s] = max(lower[c][r][s], least)
    middle = ((torch.tensor(upper) + torch.tensor(lower)) / 2).tolist()
    kernel = [[exp(-(i * i + j * j) / 200) for j in range(-2, 3)] for i in range(-2, 3)]
    total = sum(map(sum, kernel))
    out = torch.zeros(channels, height, width).tolist()
    for c, r, s in product(range(channels), range(height), range(width)):
        for i, j in product(range(-2, 3), range(-2, 3)):
            near = middle[c][min(max(r + i, 0), height - 1)][min(max(s + j, 0), width - 1)]
            out[c][r][s] += kernel[i + 2][j + 2] / total * near
    return torch.tensor(out).clamp(0, 1)


@pytest.mark.parametrize(("size", "channels"), [(16, 3), (32, 1)])
def test_inversion_is_the_published_one(size: int, channels: int) -> None:
    found = feature_map(size, channels=channels, blocks=((24, 24), (24, 24), (96, 96), (384, 384)))
    assert len(shifts(found.steps)) >= 2
    x = raw(found, 2, 0)
    features = computed(found, x)
    got = found.images(features)
    for image, row in zip(got, features, strict=True):
        torch.testing.assert_close(image, by_brute_force(found, row), rtol=0, atol=1e-6)


def test_vgg16_has_the_published_shifts_and_channels() -> None:
    with torch.device("meta"):
        net = vgg16(size=224, hidden=2, classes=2)
    from leakgauge.servers.convolutions import assigned
    from leakgauge.servers.network import chain

    task = Task(net, DataSpec((3, 224, 224), 2), dict(net.named_parameters()), {})
    steps, minima = assigned(chain(task)[0], None)
    assert minima
    assert shifts(steps) == (4, 8, 16)
    assert [i for i, step in enumerate(steps, 1) if step.directions] == [7, 10, 13]
    assert [len(step.writes) for step in steps] == [6] * 6 + [24] * 3 + [96] * 3 + [384]
    assert torch.equal(steps[-1].writes, torch.arange(384))


def test_features_are_maxima_and_minima_by_hand() -> None:
    """One four-direction layer: 4×4 regions, moved by two pixels."""
    found = feature_map(8, channels=1, blocks=((8, 8), (8, 8)))
    assert shifts(found.steps) == (2,)
    x = raw(found, 1, 0)
    z = computed(found, x).reshape(4, 2, 2, 2)
    for d, h, w in product(range(4), range(2), range(2)):
        top, left = 4 * h + 2 * (d // 2), 4 * w + 2 * (d % 2)
        region = x[0, 0, top : top + 4, left : left + 4]
        assert z[d, 0, h, w] == region.max()
        assert z[d, 1, h, w] == 1 - region.min()


def test_flat_images_come_back_but_for_nothing() -> None:
    found = feature_map(32, data={"low": -2.0, "high": 5.0})
    x = torch.tensor([-2.0, 0.5, 5.0]).view(3, 1, 1, 1).expand(3, 3, 32, 32)
    torch.testing.assert_close(found.images(computed(found, x)), x, rtol=0, atol=1e-5)


def test_smoothing_is_almost_a_box() -> None:
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4, 4] = 25
    torch.testing.assert_close(smoothed(x)[..., 2:7, 2:7], torch.ones(1, 1, 5, 5), rtol=0.05, atol=0)
    assert smoothed(torch.full((1, 2, 4, 4), 0.3)).sub(0.3).abs().max() < 1e-6


def test_smoothing_can_be_left_out() -> None:
    found = feature_map(16, channels=1, taps=PublishedTaps(smooth=False))
    features = computed(found, raw(found, 1, 0))
    lower, upper, _ = found.bounds(features)
    assert torch.equal(found.images(features), (lower + upper) / 2)


def test_features_that_were_not_seen_bound_nothing() -> None:
    torch.manual_seed(0)
    task = Task.of(vgg(classes=4, size=16).double(), DataSpec((3, 16, 16), 4))
    _, made = PublishedTaps(smooth=False).craft(task, torch.Generator())
    x = torch.rand((3, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    features = computed(made, x)
    hidden = torch.rand(features.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    lower, upper, _ = made.bounds(features.masked_fill(hidden, torch.nan))
    tight_lower, tight_upper, _ = made.bounds(features)
    assert bool((lower <= x).all())
    assert bool((x <= upper).all())
    assert bool((lower <= tight_lower).all())
    assert bool((upper >= tight_upper).all())
    everything = made.images(torch.full_like(features, torch.nan))
    assert torch.equal(everything, torch.full_like(everything, 0.5))
    as_zero = (made.images(features.masked_fill(hidden, 0.0)) - x).square().mean()
    assert float((made.images(features.masked_fill(hidden, torch.nan)) - x).square().mean()) < float(as_zero)
