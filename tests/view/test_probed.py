"""Layers that no product shows: what examples show of them, and what does not pass for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge.task import DataSpec, Mode, Task
from leakgauge.view import probed
from leakgauge.view.graph import traced
from leakgauge.view.layer import Effective
from leakgauge.view.probed import hidden_layers, probed_layer
from leakgauge.view.trace import operation

SPEC = DataSpec(shape=(2, 3, 3), classes=4, mean=(0.3,), std=(0.5,))


def first_layer(task: Task) -> Effective | None:
    graph = traced(task)
    return probed_layer(graph, graph.inputs)


class Network(nn.Module):
    """A first layer in some words, ReLU and a head."""

    def __init__(self, first: Callable[[Any, Tensor], Tensor], *parts: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.first = nn.Linear(18, 24), first
        self.parts, self.head = nn.ModuleList(parts), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.first(self, x.flatten(1))))
        return out


def _scaled(net: Any, x: Tensor) -> Tensor:
    most = x.detach().abs().amax(1, keepdim=True)
    return F.linear(x / most, net.layer.weight) * most + net.layer.bias


def _distances(net: Any, x: Tensor) -> Tensor:
    apart = (x[:, None] - net.layer.weight).square().sum(2)
    return (x.square().sum(1, keepdim=True) + net.layer.weight.square().sum(1) - apart) / 2 + net.layer.bias


def _sorted(net: Any, x: Tensor) -> Tensor:
    order = x.sum(1).argsort()
    out: Tensor = net.layer(x[order])
    return out[order.argsort()]


LAYERS = {"scaled by its largest entry": _scaled, "squared distances": _distances, "sorted": _sorted}


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_and_its_gradient_are_those_of_the_plain_one(name: str) -> None:
    net = Network(LAYERS[name])
    layer = first_layer(Task.of(net, SPEC))
    assert layer is not None
    assert torch.allclose(layer.weight, net.layer.weight.detach().double(), atol=1e-6)
    assert torch.allclose(layer.bias, net.layer.bias.detach().double(), atol=1e-6)
    whole = torch.randn(24, 19, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sent = {"layer.weight": whole[:, :-1], "layer.bias": whole[:, -1]}
    assert torch.allclose(layer.solved(sent), whole, atol=1e-9)


@pytest.mark.parametrize("start", ["input", "hidden"])
def test_no_more_is_held_at_once_than_what_is_made_on_the_way_has_room_for(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 768 inputs and 96 units, what distances are squares of asked for 87 GB at once: for each of its entries the
    whole of it, twice. Parts were as many rows as the node itself and what it is computed of directly have room for."""
    net = Network(_distances) if start == "input" else Deep(_distances)
    values, asked = probed.Range.values, list[int]()

    def watched(self: probed.Range, task: Task, nodes: list[Any], rows: Tensor) -> list[Tensor]:
        if len(rows) > probed.EXAMPLES:  # those on which all tensors are tried together
            asked.append(len(rows) * self.on_the_way(nodes[0], lambda n: n in self.graph.colours.data))
        return values(self, task, nodes, rows)

    graph, names = traced(Task.of(net, SPEC)), frozenset({"layer.weight", "layer.bias"})
    monkeypatch.setattr(probed.Range, "values", watched)

    def look() -> list[Effective | None]:
        return [probed_layer(graph, graph.inputs)] if start == "input" else [*hidden_layers(graph, names)]

    (wide,) = look()
    assert max(asked) > 2**15
    asked.clear()
    monkeypatch.setattr(probed, "ENTRIES", 2**14)
    (narrow,) = look()
    assert wide is not None
    assert narrow is not None
    assert torch.allclose(wide.weight, narrow.weight)
    assert 2**13 < max(asked) <= 2**14
    monkeypatch.setattr(probed, "HELD", 2**13)  # for a derivative all rows are held
    assert look() in ([], [None])


def _mixed(net: Any, x: Tensor) -> Tensor:
    return net.layer(x) - net.layer(x).mean(0)


NOT_ONE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "squares": lambda net, x: net.layer(x + x.square()),
    "a bound at the end of the range": lambda net, x: net.layer(x.clamp(max=1.39)),
    "what the batch has in common": _mixed,
    "weights of the head": lambda net, x: net.layer(x * (1 + net.head.weight.square().mean())),
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_what_is_no_affine_map_of_each_example_is_none(name: str) -> None:
    assert first_layer(Task.of(Network(NOT_ONE[name]), SPEC)) is None


def test_batch_statistics_are_none() -> None:
    net = Network(lambda net, x: net.parts[0](net.layer(x)), nn.BatchNorm1d(24))
    layer = first_layer(Task.of(net, SPEC, mode=Mode.TRAIN))
    assert layer is not None
    assert set(layer.parameters) == {"layer.weight", "layer.bias"}  # what stands before them


@pytest.mark.parametrize(("far", "whole"), [(0.3, False), (30.0, True)])
def test_a_unit_that_switches_for_some_example_of_the_range_is_no_part_of_a_layer(far: float, whole: bool) -> None:
    """Random examples leave every unit as it is; those at which one is extreme do not."""
    net = Network(lambda net, x: net.layer(x))
    with torch.no_grad():
        net.layer.bias.fill_(far * float(net.layer.weight.abs().sum(1).max()) + 1e-3)
    layer = first_layer(Task.of(net, SPEC))
    assert layer is not None
    assert ("head.weight" in layer.parameters) is whole


def test_what_bends_at_a_contrast_of_the_input_alone_is_no_part_of_a_layer() -> None:
    """No random example has it, nor one that is all dark or all bright."""

    def first(net: Any, x: Tensor) -> Tensor:
        contrast = torch.relu(x[:, :9].mean(1) - x[:, 9:].mean(1) - 1.8)
        return _scaled(net, x) + contrast[:, None] * net.layer.bias

    layer = first_layer(Task.of(Network(first), SPEC))
    assert layer is not None
    assert layer.parameters == ("layer.weight",)


class Deep(nn.Module):
    """A convolution, ReLU, a layer in some words, and a head."""

    def __init__(self, hidden: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front, self.layer, self.hidden = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(18, 24), hidden
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.hidden(self, self.front(x).relu().flatten(1))))
        return out


def _blended(net: Any, x: Tensor) -> Tensor:
    """Rows of the weight in windows that overlap, over their sum."""
    total, count = x.new_zeros(len(x), 24), x.new_zeros(24)
    for part in (slice(0, 16), slice(8, 24)):
        total[:, part] += F.linear(x, net.layer.weight[part], net.layer.bias[part])
        count[part] += 1
    return total / count


HIDDEN = {"squared distances": _distances, "windows, blended": _blended}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_hidden_layer_and_its_gradient_are_those_of_the_plain_one(name: str) -> None:
    net = Deep(HIDDEN[name])
    (layer,) = hidden_layers(traced(Task.of(net, SPEC)), frozenset({"layer.weight", "layer.bias"}))
    assert torch.allclose(layer.weight, net.layer.weight.detach().double(), atol=1e-6)
    whole = torch.randn(24, 19, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sent = {"layer.weight": whole[:, :-1], "layer.bias": whole[:, -1]}
    assert torch.allclose(layer.solved(sent), whole, atol=1e-7)


BENT: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "squares": (lambda net, x: _distances(net, x + x.square()), "add"),
    "a bound beyond what random inputs reach": (lambda net, x: _distances(net, x.clamp(max=3.0)), "clamp"),
}


@pytest.mark.parametrize("name", BENT)
def test_a_hidden_layer_begins_behind_what_bends(name: str) -> None:
    hidden, start = BENT[name]
    names = frozenset({"layer.weight", "layer.bias"})
    (layer,) = hidden_layers(traced(Task.of(Deep(hidden), SPEC)), names)
    assert [operation(node) for node in layer.given] == [start]


def test_a_hidden_layer_that_mixes_examples_is_none() -> None:
    names = frozenset({"layer.weight", "layer.bias"})
    assert hidden_layers(traced(Task.of(Deep(_mixed), SPEC)), names) == []


class Folded(Deep):
    """What a hidden layer reads stands there twice; its weight, of twice as many entries, is the sum of its halves."""

    def __init__(self) -> None:
        super().__init__(lambda net, x: net.layer(x))
        self.wide = nn.Parameter(torch.randn(24, 36) / 6)

    def forward(self, x: Tensor) -> Tensor:
        twice = torch.cat([self.front(x).relu().flatten(1)] * 2, 1)
        weight = self.wide + self.wide.roll(18, 1)
        apart = (twice[:, None] - weight).square().sum(2)
        z = (twice.square().sum(1, keepdim=True) + weight.square().sum(1) - apart) / 2
        out: Tensor = self.head(z.relu())
        return out


def test_what_a_wide_tensor_does_not_determine_a_narrower_one_before_it_may() -> None:
    (layer,) = hidden_layers(traced(Task.of(Folded(), SPEC)), frozenset({"wide"}))
    assert layer.shape == (24, 18)
