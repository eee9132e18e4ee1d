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
from leakgauge.view.probed import output_layer, probed_layer

SPEC = DataSpec(shape=(2, 3, 3), classes=4, mean=(0.3,), std=(0.5,))


def first_layer(task: Task) -> Effective | None:
    return probed_layer(traced(task))


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


def test_no_more_is_held_at_once_than_what_is_made_on_the_way_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 768 inputs and 96 units, what distances are squares of asked for 87 GB at once: for each of its entries the
    whole of it, twice. Parts were as many rows as the node itself and what it is computed of directly have room for."""
    net = Network(_distances)
    values, asked = probed.Range.values, list[int]()

    def watched(self: probed.Range, task: Task, nodes: list[Any], rows: Tensor) -> list[Tensor]:
        if len(rows) > probed.EXAMPLES:  # those on which all tensors are tried together
            asked.append(len(rows) * self.on_the_way(nodes[0], lambda n: n in self.graph.colours.data))
        return values(self, task, nodes, rows)

    graph = traced(Task.of(net, SPEC))
    monkeypatch.setattr(probed.Range, "values", watched)

    wide = probed_layer(graph)
    assert max(asked) > 2**15
    asked.clear()
    monkeypatch.setattr(probed, "ENTRIES", 2**14)
    narrow = probed_layer(graph)
    assert wide is not None
    assert narrow is not None
    assert torch.allclose(wide.weight, narrow.weight)
    assert 2**13 < max(asked) <= 2**14
    monkeypatch.setattr(probed, "HELD", 2**13)  # for a derivative all rows are held
    assert probed_layer(graph) is None


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


class Headed(nn.Module):
    """A head in some words behind a hidden layer."""

    def __init__(self, words: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.words = nn.Linear(18, 24), nn.Linear(24, 4), words

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.head, self.first(x.flatten(1)).relu())


def _to_means(head: Any, x: Tensor) -> Tensor:
    return head.bias - (x[:, None] - head.weight).square().sum(2) / 2


def _shared(head: Any, x: Tensor) -> Tensor:
    out: Tensor = head(x)
    return out + x.square().sum(1, keepdim=True)


HEADS = {"distances to means": _to_means, "a number that all classes share": _shared}


def _last(words: Callable[[Any, Tensor], Tensor], loss: Any = F.cross_entropy) -> tuple[Effective | None, Headed]:
    net = Headed(words)
    graph = traced(Task.of(net, SPEC, loss=loss))
    assert graph.trace.outputs is not None
    return output_layer(graph, graph.trace.outputs), net


@pytest.mark.parametrize("name", HEADS)
def test_outputs_are_a_layer_but_for_what_the_loss_does_not_see(name: str) -> None:
    layer, net = _last(HEADS[name])
    assert layer is not None
    weight = net.head.weight.detach().double()
    assert torch.allclose(layer.weight, weight - weight.mean(0), atol=1e-6)
    x = torch.rand(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    signals = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    signals = signals - signals.mean(1, keepdim=True)
    own = net.double()
    made = (own.words(own.head, x) * signals).sum()
    sent = dict(zip(("head.weight", "head.bias"), torch.autograd.grad(made, list(own.head.parameters())), strict=True))
    whole = signals.T @ torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], 1)
    assert torch.allclose(layer.solved(sent), whole, atol=1e-7)


def _squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - F.one_hot(labels, 4)).square().mean()


BENT: dict[str, tuple[Callable[[Any, Tensor], Tensor], Any]] = {
    "a loss that sees it": (_shared, _squared),
    "logits that are cut off far out": (lambda head, x: head(x).clamp(-50, 50), F.cross_entropy),
    "logits that are bent": (lambda head, x: 30 * torch.tanh(head(x) / 30), F.cross_entropy),
}


@pytest.mark.parametrize("name", BENT)
def test_outputs_that_a_loss_tells_from_a_layer_are_none(name: str) -> None:
    assert _last(*BENT[name])[0] is None
