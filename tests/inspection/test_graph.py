"""Wiring: crafted structures stand out, honest skips and concatenations do not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from cases import SPEC
from leakgauge.inspection.graph import Couplings, couplings, traced
from leakgauge.inspection.rule import Measurement, Received
from leakgauge.inspection.rules.passage import InputInDepth, NarrowedView, fresh, views
from leakgauge.inspection.rules.values import SubModels, pictures
from leakgauge.task import DataSpec, Mode, Task

D = 192


class Couple(nn.Module):
    """One coupling of two halves of the channels; `scaled` makes it affine."""

    def __init__(self, width: int, scaled: bool = False) -> None:
        super().__init__()
        self.f, self.g, self.scaled = nn.Linear(width, width), nn.Linear(width, width), scaled

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        a = a * torch.sigmoid(b) + self.f(b).tanh() if self.scaled else a + self.f(b).tanh()
        return torch.cat([a, b + self.g(a).tanh()], 1)


class Residual(nn.Module):
    """A residual stage on a stem; `zero` starts its branch at nothing."""

    def __init__(self, zero: bool = False) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.answer = nn.Linear(8 * 16, 5)
        if zero:
            nn.init.zeros_(self.b.weight)
            nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        for _ in range(2):
            x = (x + self.b(self.a(x).relu())).relu()
        return self.answer(F.avg_pool2d(x, 2).flatten(1))


class DenseBlock(nn.Module):
    """Every convolution sees the input and all features so far."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 4 * i, 4, 3, 1, 1) for i in range(3))
        self.answer = nn.Linear(15, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = torch.cat([x, conv(x).relu()], 1)
        return self.answer(x.mean((2, 3)))


class UNet(nn.Module):
    """Early features join late ones."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = (
            nn.Conv2d(3, 4, 3, 1, 1),
            nn.Conv2d(4, 8, 3, 2, 1),
            nn.ConvTranspose2d(8, 4, 2, 2),
        )
        self.join, self.answer = nn.Conv2d(8, 4, 3, 1, 1), nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        early = self.down(x).relu()
        late = self.up(self.deep(early).relu()).relu()
        return self.answer(F.avg_pool2d(self.join(torch.cat([early, late], 1)).relu(), 2).flatten(1))


class Attention(nn.Module):
    """Patches, one block of attention and one of two linear layers, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 24), nn.Linear(8, 8)
        self.wide, self.narrow, self.answer = nn.Linear(8, 32), nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        t = self.embed(x).flatten(2).mT
        q, k, v = self.qkv(t).chunk(3, 2)
        t = t + self.out(F.scaled_dot_product_attention(q, k, v))
        gate, value = self.wide(t).chunk(2, 2)
        return self.answer((t + self.narrow(gate.sigmoid() * value)).mean(1))


class Split(nn.Module):
    """Res2Net: parts of the channels are added to each other, and none is kept as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = nn.Conv2d(3, 8, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1)
        self.answer = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        p, q = self.stem(x).chunk(2, 1)
        p = self.a(p)
        return self.answer(torch.cat([p, self.b(q + p)], 1).mean((2, 3)))


class Skip(nn.Module):
    """A convolutional network whose classifier also sees the input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.answer = nn.Conv2d(3, 4, 3, 2, 1), nn.Linear(64 + D, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(torch.cat([self.conv(x).relu().flatten(1), x.flatten(1)], 1))


class Routed(nn.Module):
    """Sends each example to one of many small layers by its brightness."""

    def __init__(self, copies: int = 64) -> None:
        super().__init__()
        self.copies = nn.ModuleList(nn.Linear(D, 2) for _ in range(copies))
        self.answer = nn.Linear(2, 5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        place = (flat.mean(1).detach() * 1000).floor().remainder(len(self.copies))
        parts = [layer(flat) * (place == i).to(flat)[:, None] for i, layer in enumerate(self.copies)]
        return self.answer(torch.stack(parts).sum(0))


class Stubborn(nn.Module):
    """Asks a value for its numbers, which tracing cannot answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(x.flatten(1) if x.sum() > 0 else -x.flatten(1))


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 5),
    )  # fmt: skip


HONEST = {
    "perceptron": perceptron,
    "plain": plain,
    "residual": Residual,
    "zero-residual": lambda: Residual(zero=True),
    "dense": DenseBlock,
    "unet": UNet,
    "attention": Attention,
    "split": Split,
}


def received(module: nn.Module, data: DataSpec = SPEC, mode: Mode = Mode.EVAL) -> Received:
    task = Task.of(module, data, mode=mode)
    return Received(state={}, task=task)


def built(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return HONEST[name]()


@pytest.mark.parametrize("name", HONEST)
def test_honest_networks_are_quiet(name: str) -> None:
    for seed in range(2):
        r = received(built(name, seed))
        assert Couplings().measure(r).statistic == 0
        assert InputInDepth().measure(r).statistic < 0.3
        assert NarrowedView().measure(r).statistic < 1
        assert SubModels().measure(r).statistic < 0.35


@pytest.mark.parametrize("scaled", [False, True], ids=["additive", "affine"])
def test_couplings_on_the_pixels_are_counted(scaled: bool) -> None:
    net = nn.Sequential(nn.Flatten(), Couple(96, scaled), Couple(96, scaled), nn.Linear(D, 5))
    found = Couplings().measure(received(net))
    assert found.statistic == 2
    assert "2 of them with nothing but couplings before them" in found.evidence


def test_couplings_behind_a_layer_count_half() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(D, 32), Couple(16), nn.Linear(32, 5))
    assert Couplings().measure(received(net)).statistic == 0.5


def test_a_one_sided_coupling_is_one() -> None:
    class OneSided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.answer = nn.Linear(96, 96), nn.Linear(D, 5)

        def forward(self, x: Tensor) -> Tensor:
            a, b = x.flatten(1).split([96, 96], 1)
            return self.answer(torch.cat([b, a + self.f(b).relu()], 1))

    assert Couplings().measure(received(OneSided())).statistic == 1


def test_streams_carried_apart_are_followed() -> None:
    class Streams(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fs = nn.ModuleList(nn.Linear(96, 96) for _ in range(4))
            self.answer = nn.Linear(D, 5)

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(1)
            a, b = flat[:, :96], flat[:, 96:]
            for i in (0, 2):
                a = a + self.fs[i](b).relu()
                b = b + self.fs[i + 1](a).relu()
            return self.answer(torch.cat([a, b], 1))

    graph = traced(Task.of(Streams(), SPEC))
    assert isinstance(graph, fx.Graph)
    assert [c.raw for c in couplings(graph)] == [True, True]


def test_what_cannot_be_traced_says_so() -> None:
    found = Couplings().measure(received(Stubborn()))
    assert found.statistic == 0
    assert "cannot be traced" in found.unjudged[0].reason
    # The rules that only run the model still judge it.
    assert not SubModels().measure(received(nn.Sequential(Stubborn(), nn.Linear(5, 5)))).unjudged


def test_the_input_at_the_classifier_is_seen() -> None:
    found = InputInDepth().measure(received(Skip()))
    assert found.statistic > 0.95
    assert found.where[0] == "answer"


def identity_filters(net: nn.Module) -> nn.Module:
    """The first three channels of each convolution copy their namesakes."""
    for conv in (m for m in net.modules() if isinstance(m, nn.Conv2d)):
        with torch.no_grad():
            conv.weight[:3] = 0
            conv.bias[:3] = 10 if conv.in_channels == 3 else 0
            for c in range(3):
                conv.weight[c, c, 1, 1] = 1
    return net


def test_pixels_carried_by_filters_are_seen() -> None:
    honest, crafted = built("plain"), identity_filters(built("plain"))
    # Max-pooling keeps one pixel in four, and three channels of eight carry pixels.
    seen = InputInDepth().measure(received(crafted))
    assert seen.statistic > InputInDepth().measure(received(honest)).statistic + 0.1
    whole = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.Flatten(), nn.Linear(512, 5)
    )
    assert InputInDepth().measure(received(identity_filters(whole))).statistic > 0.95


def test_averages_of_few_pixels_narrow_the_view() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 5, 1, 2), nn.AvgPool2d(2), nn.Conv2d(4, 4, 5, 1, 2), nn.Flatten(), nn.Linear(64, 5)
    )
    before = NarrowedView().measure(received(net)).statistic
    with torch.no_grad():
        for conv in (net[0], net[2]):
            conv.weight.zero_()
            for c in range(3):
                conv.weight[c, c, 2, 2] = 1
    found = NarrowedView().measure(received(net))
    # Four pixels of one colour make a feature.
    assert "sees 4 pixels" in found.evidence
    assert found.statistic > 5 > 1 > before


def test_views_of_a_known_layer() -> None:
    """Against the exact Jacobian: a grey mean of two by two has twelve equal pixels behind it."""

    class Grey(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.answer = nn.Conv2d(3, 1, 2, 2, bias=False), nn.Linear(16, 5)
            nn.init.constant_(self.conv.weight, 1 / 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.answer(self.conv(x).flatten(1))

    task = Task.of(Grey().double(), DataSpec((3, 8, 8), 5))
    (view,) = views(task, torch.Generator().manual_seed(0))
    assert view.name == "answer"
    assert view.focus == pytest.approx(1 / 12)
    assert view.features == pytest.approx(1 / 12)
    assert view.pixels == pytest.approx(1 / 12)


def test_a_new_start_leaves_the_task_and_names_what_has_none() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.answer = nn.Parameter(torch.ones(D)), nn.Linear(D, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.answer(self.scale * x.flatten(1))

    task = Task.of(Own(), SPEC)
    before = {k: v.clone() for k, v in task.parameters.items()}
    state = torch.get_rng_state()
    again, missed = fresh(task, torch.Generator().manual_seed(0))
    assert missed == ("scale",)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(again.parameters["answer.weight"], before["answer.weight"])
    assert all(torch.equal(v, task.parameters[k]) for k, v in before.items())


def test_tables_are_not_judged_for_passing_inputs_on() -> None:
    found = InputInDepth().measure(received(nn.Linear(20, 5), DataSpec((20,), 5)))
    assert found.statistic == 0
    assert "tables" in found.unjudged[0].reason


def test_a_part_for_each_example_is_seen() -> None:
    found = SubModels().measure(received(Routed()))
    assert found.statistic > 0.1
    assert any(name.startswith("copies.") for name in found.where)


def test_pictures_are_in_range_and_differ(generator: torch.Generator) -> None:
    task = Task.of(perceptron(), DataSpec((3, 8, 8), 5, low=-1.0, high=2.0))
    made = pictures(task, 16, generator)
    assert made.shape == (16, 3, 8, 8)
    assert float(made.min()) >= -1
    assert float(made.max()) <= 2
    assert float(made.mean((1, 2, 3)).std()) > 0.2


@pytest.mark.parametrize(
    "rule", [Couplings(), InputInDepth(), NarrowedView(), SubModels()], ids=lambda r: type(r).__name__
)
def test_measuring_changes_nothing_and_repeats(rule) -> None:
    r = received(nn.Sequential(built("plain"), nn.BatchNorm1d(5), nn.Linear(5, 5)), mode=Mode.TRAIN)
    assert r.task is not None
    before, drawn = copy.deepcopy(r.task), torch.get_rng_state()
    first: Measurement = rule.measure(r)
    # A new object, or the repeat would be answered from memory.
    assert rule.measure(Received(state={}, task=copy.deepcopy(r.task))) == first
    assert torch.equal(torch.get_rng_state(), drawn)
    assert r.task.module.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in r.task.module.modules())
    for mine, theirs in ((r.task.parameters, before.parameters), (r.task.buffers, before.buffers)):
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items())
