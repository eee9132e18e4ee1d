"""Behind statistics of the batch a hidden tensor is found by smooth least squares, from numbers at random."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from convolutions import observed
from leakgauge.attacks.features.fits import SmoothSystem, by_input
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.features.signals import KnownInside
from leakgauge.attacks.matching.problem import UNLIMITED, Meter
from leakgauge.attacks.recipes.features import deepest
from leakgauge.batch import Batch
from leakgauge.compute import Budget
from leakgauge.observation import Step


class Own(nn.Module):
    """A batch norm in somebody's words."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.6, 1.4, channels))
        self.shift = nn.Parameter(torch.linspace(-0.3, 0.3, channels))

    def forward(self, x: Tensor) -> Tensor:
        axes = [k for k in range(x.ndim) if k != 1]
        gap = x - x.mean(axes, keepdim=True)
        spread = (gap * gap).mean(axes, keepdim=True) + 1e-5
        return gap / spread.sqrt() * self.scale.view(-1, 1, 1) + self.shift.view(-1, 1, 1)


class Deep(nn.Module):
    """Layers of which only those far from the input have as many filters as places."""

    def __init__(self, norm: Callable[[int], nn.Module], *, shortcut: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = ((2, 12, 1), (12, 24, 2), (24, 24, 1), (24, 48, 2), (48, 48, 1))
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, stride, 1, bias=False) for a, b, stride in sizes)
        self.norms = nn.ModuleList(norm(b) for _, b, _ in sizes)
        self.head, self.shortcut = nn.Linear(48, 4), shortcut

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            made = norm(conv(x))
            x = (made + x if self.shortcut and made.shape == x.shape else made).relu()
        return self.head(x.mean((2, 3)))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch norm": nn.BatchNorm2d,
    "without memory": lambda n: nn.BatchNorm2d(n, track_running_stats=False),
    "in own words": Own,
    "of each example": lambda n: nn.InstanceNorm2d(n, affine=True),
    "of groups": lambda n: nn.GroupNorm(4, n),
}


def smooth(count: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    coarse = torch.rand(count, 2, 5, 5, generator=draws)
    return nn.functional.interpolate(coarse, 16, mode="bicubic").clamp(0, 1), torch.arange(count) % 4


class Pooled(nn.Sequential):
    """Max-pools, whose choice of places error signals depend on."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for before, after, pool in ((2, 12, 2), (12, 24, 1), (24, 48, 2), (48, 48, 1)):
            layers += [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU()]
            layers += [nn.MaxPool2d(pool)] if pool > 1 else []
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4))


@pytest.mark.parametrize(("norm", "mode", "solves"), [(nn.Identity, "eval", False), (nn.BatchNorm2d, "train", True)])
def test_signals_that_change_by_jumps_alone_are_no_smooth_system(
    norm: Callable[[int], nn.Module], mode: str, solves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ConvNet of width 64 had spent 180 seconds on such systems before its inversion began."""
    calls, original = [], SmoothSystem.solved
    monkeypatch.setattr(SmoothSystem, "solved", lambda *a, **k: calls.append(a[0]) or original(*a, **k))
    inputs, labels = smooth(1)
    hidden = HiddenTensors.of(observed(Pooled(norm), inputs, labels, mode).view, 1)
    assert deepest(hidden, UNLIMITED, torch.Generator().manual_seed(0)) is not None
    assert bool(calls) is solves


@pytest.mark.parametrize(
    ("name", "shortcut", "count"),
    [
        *(("batch norm", True, 1), ("in own words", False, 1), ("of groups", True, 1)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *((name, True, 1) for name in ("without memory", "in own words", "of each example")),
                *((name, False, 1) for name in NORMS if name != "in own words"),
                ("batch norm", False, 2),
            ]
        ),
    ],
)
def test_the_descent_goes_on_through_statistics_of_the_batch(name: str, shortcut: bool, count: int) -> None:
    """Signals behind them depend on the tensor that is looked for: systems that take them as known ended there."""
    inputs, labels = smooth(count)
    observation = observed(Deep(NORMS[name], shortcut=shortcut), inputs, labels, "train")
    hidden = HiddenTensors.of(observation.view, count)
    found = deepest(hidden, UNLIMITED, torch.Generator().manual_seed(0))
    assert found is not None
    values = found.state.values
    batch = Batch(inputs.double(), labels)
    first = next(iter(values))
    (true,) = hidden.inside.run([first], {}, batch)
    batch = Batch(
        *(t[torch.cdist(values[first].flatten(1), true.flatten(1)).argmin(1)] for t in (inputs.double(), labels))
    )
    for node, true in zip(values, hidden.inside.run(list(values), {}, batch), strict=True):
        assert float((values[node] - true).norm()) < 1e-4 * float(true.norm()), node.name
    assert max(value[0, 0].numel() for value in values.values()) == 64
    assert len(values) == 4


def test_signals_follow_from_a_layers_input_where_its_rows_are_independent() -> None:
    inputs, labels = smooth(2)
    hidden = HiddenTensors.of(observed(Deep(nn.BatchNorm2d, shortcut=True), inputs, labels, "eval").view, 2)
    inside, batch = hidden.inside, Batch(inputs.double(), labels)
    *_, front, last = inside.layers
    for layer in (last, front):
        known = KnownInside(inside, {layer.hidden: inside.run([layer.hidden], {}, batch)[0]})
        found = by_input(known, layer, hidden.gradients[layer.weight].matrix)
        assert found is not None
        (true,) = inside.run([layer.output], {}, batch)
        torch.testing.assert_close(inside.output_of(layer, found[0]), true, rtol=1e-3, atol=1e-5 * float(true.norm()))
        assert found[1] < 1e-5
    assert by_input(KnownInside(inside), last, hidden.gradients[last.weight].matrix) is None


def test_the_caller_ends_a_smooth_system_between_its_products() -> None:
    inputs, labels = smooth(1)
    hidden = HiddenTensors.of(observed(Deep(nn.BatchNorm2d, shortcut=False), inputs, labels, "train").view, 1)
    calls = []

    def stop(step: Step) -> bool:
        calls.append(step)
        return len(calls) > 5

    found = deepest(hidden, Meter(Budget(), stop), torch.Generator().manual_seed(0))
    assert found is not None
    assert len(found.state.values) == 2  # what was read
    assert len(calls) == 6
