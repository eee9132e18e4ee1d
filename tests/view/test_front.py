"""What layers read of an example tells it from all others, or an update proves nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.observation import Observation
from leakgauge.view.front import NetworkFront, told_apart
from leakgauge.view.graph import followed

SPEC = lg.DataSpec((3, 6, 6), 5)
FLAT = 108
Map = Callable[[Tensor], Tensor]


class Mapped(nn.Module):
    def __init__(self, map_: Map) -> None:
        super().__init__()
        self.map = map_

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


def mapped(map_: Map) -> nn.Module:
    """A perceptron of what a map makes of the flattened input."""
    torch.manual_seed(0)
    wide = map_(torch.zeros(1, FLAT)).shape[1]
    return nn.Sequential(nn.Flatten(), Mapped(map_), nn.Linear(wide, 64), nn.ReLU(), nn.Linear(64, 5))


def convolved(*front: nn.Module, channels: int = 3, **options: int) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(*front, nn.Conv2d(channels, 16, **options), nn.ReLU(), nn.Conv2d(16, 48, 2), nn.ReLU())
    flat = body(torch.zeros(1, 3, 6, 6)).flatten(1).shape[1]
    return nn.Sequential(body, nn.Flatten(), nn.Linear(flat, 5))


def hats(x: Tensor) -> Tensor:
    return (1 - (7 * x.unsqueeze(-1) - torch.arange(8.0).to(x)).abs()).clamp_min(0).flatten(1)


def turned(x: Tensor) -> Tensor:
    sides = torch.linalg.qr(torch.cos(torch.arange(float(FLAT**2))).view(FLAT, FLAT))[0]
    return x @ sides.to(x)


class Added(nn.Module):
    """What one network makes of several maps of the input, added up."""

    def __init__(self, *maps: Map) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.maps, self.body = maps, nn.Linear(maps[0](torch.zeros(1, 3, 6, 6)).flatten(1).shape[1], 64)
        self.head = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(sum(self.body(map_(x).flatten(1)).relu() for map_ in self.maps))


class Patches(nn.Module):
    """Parts of a picture, each with a vector of its place, of which the last ones share theirs."""

    def __init__(self, own: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.places = nn.Conv2d(3, 48, 2, 2), nn.Parameter(torch.randn(own, 48))
        self.up, self.head = nn.Linear(48, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        own = torch.arange(9).clamp_max(len(self.places) - 1)
        parts = self.cut(x).flatten(2).transpose(1, 2) + self.places[own]
        return self.head(self.up(parts.relu()).relu().mean(1))


def around(reach: int = 2) -> nn.Module:
    """Convolutions around a sphere's longitude, and their mean over it."""
    torch.manual_seed(0)
    layers = [
        layer
        for k in range(reach)
        for layer in (nn.Conv2d(3 if k == 0 else 64, 64, 3, padding=1, padding_mode="circular"), nn.ReLU())
    ]
    return nn.Sequential(*layers, Mapped(lambda x: x.mean(3)), nn.Flatten(), nn.Linear(384, 64), nn.ReLU(),
                         nn.Linear(64, 5))  # fmt: skip


def mirrored(x: Tensor) -> Tensor:
    return x.flip(3)


def without_frame(x: Tensor) -> Tensor:
    return x[..., 1:, 1:]


TOLD: dict[str, Callable[[], nn.Module]] = {
    "a convolution": lambda: convolved(kernel_size=3, padding=1),
    "rotated": lambda: mapped(turned),
    "a power": lambda: mapped(lambda x: x**1.7),
    "a logarithm": lambda: mapped(lambda x: (x + 1e-2).log()),
    "splines": lambda: mapped(hats),
    "squares beside": lambda: mapped(lambda x: torch.cat([(2 * x - 1) ** 2, x], 1)),
}
UNREAD: dict[str, Callable[[], nn.Module]] = {
    "the picture twice as bright": lambda: Added(lambda x: x, lambda x: 2 * x),
    "patches with places of their own": lambda: Patches(9),
    "a zero frame around": lambda: nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 5)
    ),
    "parts with places of their own": lambda: Added(lambda x: x[..., :3] + 1, lambda x: x[..., 3:]),
}
"""Told from all others, though no attack reads them in a few evaluations."""
FREE: dict[str, Callable[[], nn.Module]] = {
    "squares": lambda: mapped(lambda x: (2 * x - 1) ** 2),
    "sizes": lambda: mapped(lambda x: (2 * x - 1).abs()),
    "a wave": lambda: mapped(lambda x: torch.cat([(20 * x).sin(), (20 * x).cos()], 1)),
    "a clamp": lambda: mapped(lambda x: x.clamp(0.3, 0.7)),
    "bins": lambda: mapped(lambda x: nn.functional.one_hot((x * 8).long().clamp(0, 7), 8).to(x).flatten(1)),
    "sorted": lambda: mapped(lambda x: x.sort(dim=1).values),
    "a line left out, and squares": lambda: mapped(lambda x: torch.cat([x[:, 6:], x[:, 6:] ** 2], 1)),
    "a stride that leaves a frame": lambda: convolved(kernel_size=3, stride=2),
    "a stride that leaves dots": lambda: convolved(kernel_size=1, stride=2),
    "a frame left out": lambda: convolved(Mapped(without_frame), kernel_size=2),
    "grey": lambda: convolved(Mapped(lambda x: x.mean(1, keepdim=True)), channels=1, kernel_size=3, padding=1),
    "less its mean": lambda: convolved(Mapped(lambda x: x - x.mean((1, 2, 3), keepdim=True)), kernel_size=3, padding=1),
    "neighbours added": lambda: mapped(lambda x: x + x.roll(1, 1)),
    "its mirror image": lambda: Added(lambda x: x, mirrored),
    "turned four ways": lambda: Added(*(lambda x, k=k: x.rot90(k, (2, 3)) for k in range(4))),  # type: ignore[misc]
    "parts in any order": lambda: Added(lambda x: x[..., :3], lambda x: x[..., 3:]),
    "patches in any order": lambda: nn.Sequential(
        nn.Conv2d(3, 48, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 5)
    ),
    "two late patches in any order": lambda: Patches(8),
    "around a circle": around,
    "around a circle, seen three columns at a time": lambda: around(1),
    "its negative": lambda: Added(lambda x: x, lambda x: 1 - x),
    "halves": lambda: convolved(nn.AvgPool2d(2), kernel_size=2),
}
"""Other examples have the same update."""


def reading(net: nn.Module) -> tuple[lg.Task, Tensor]:
    return lg.Task.of(net, SPEC), torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", TOLD | UNREAD | FREE)
def test_examples_are_told_from_all_others_or_not(name: str) -> None:
    task, inputs = reading((TOLD | UNREAD | FREE)[name]())
    assert told_apart(task, task.data.normalise(inputs)).tolist() == [name not in FREE] * 2


@pytest.mark.parametrize("name", TOLD | FREE)
def test_nothing_is_certified_that_other_examples_explain_too(name: str) -> None:
    """A convolution that a stride leads past the last line certified it grey; so was the sign of what is squared."""
    task, inputs = reading((TOLD | FREE)[name]())
    batch = lg.Batch(inputs[:1], torch.tensor([2]))
    update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(0))
    found = lg.attack(task, update, budget=lg.Budget(gradient_evaluations=400))
    sure = found.status is lg.Status.EXACT or (found.certified is not None and bool(found.certified.any()))
    assert sure is (name in TOLD)
    if sure:
        assert "look the same" not in found.message
        assert found.inputs is not None
        torch.testing.assert_close(found.inputs, batch.inputs, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("stride", "read"), [(1, 108), (2, 75), (3, 108)])
def test_numbers_that_a_stride_passes_by_do_not_follow(stride: int, read: int) -> None:
    graph = followed(lg.Task.of(convolved(kernel_size=3, stride=stride) if stride < 3 else nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)), SPEC))  # fmt: skip
    assert not isinstance(graph, str)
    assert int(NetworkFront(graph).affine.sum()) == read


def test_an_input_that_no_unit_answers_to_is_not_certified() -> None:
    """The layer reads it, and its error signals are zero there: nothing of it was sent."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 2, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 5))
    with torch.no_grad():
        net[0].weight.abs_()
        net[0].bias.fill_(-0.5)
    task, inputs = reading(net)
    inputs[:, :, :2, :2] = 0.1
    batch = lg.Batch(inputs[:1], torch.tensor([2]))
    update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(0))
    seen = Observation(task, update, lg.Knowledge(labels=batch.labels, example_count=1))
    other = batch.inputs.clone()
    other[:, :, :2, :2] = 0.0
    explainer = Explainer.of(seen, torch.Generator().manual_seed(0))
    assert explainer.left(lg.Batch(other, batch.labels)) < explainer.tolerance, "the draw tests nothing"
    assert not explainer.certified(lg.Batch(other, batch.labels), torch.Generator().manual_seed(0)).any()


def test_a_picture_shifted_around_a_circle_explains_the_update_and_is_not_certified() -> None:
    """Half of those that inversion of hidden tensors certified were shifted."""
    task, inputs = reading(around())
    batch = lg.Batch(inputs[:1], torch.tensor([2]))
    update = lg.clients.client_update(task, lg.clients.FedSGD(), batch, lg.Draws(0))
    explainer = Explainer.of(
        Observation(task, update, lg.Knowledge(labels=batch.labels, example_count=1)), torch.Generator().manual_seed(0)
    )
    for other in (batch.inputs, batch.inputs.roll(2, 3)):
        assert explainer.left(lg.Batch(other, batch.labels)) < explainer.tolerance
        assert not explainer.certified(lg.Batch(other, batch.labels), torch.Generator().manual_seed(0)).any()
