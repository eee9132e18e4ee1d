"""Pixels that pass through and parts for single examples stand out, honest skips and concatenations do not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cases import SPEC
from leakgauge.inspection.drives import in_eval
from leakgauge.inspection.rule import Limits, Measurement, Received, measure
from leakgauge.inspection.rules.passage import copied, input_in_depth, views
from leakgauge.inspection.rules.values import pictures, sub_models
from leakgauge.task import DataSpec, Mode, Task

D = 192
LIMITS = Limits.packaged().limits


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
        assert input_in_depth(r).statistic < 0.3
        assert sub_models(r).statistic < 0.35


def test_code_that_looks_at_values_is_judged_too() -> None:
    assert not sub_models(received(nn.Sequential(Stubborn(), nn.Linear(5, 5)))).unjudged


class Turned(nn.Module):
    """Three examples go another way than those that a trace is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.bright, self.dark = nn.Linear(D, 5), nn.Linear(D, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.bright(x.flatten(1)) if len(x) != 3 else self.dark(x.flatten(1))


def test_a_model_that_computes_otherwise_elsewhere_is_not_judged() -> None:
    for rule in (sub_models, input_in_depth):
        found = rule(received(Turned()))
        assert found.statistic == 0
        assert found.unjudged[0].name == "model"


def test_the_input_at_the_classifier_is_seen() -> None:
    found = input_in_depth(received(Skip()))
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
    seen = input_in_depth(received(crafted))
    assert seen.statistic > input_in_depth(received(honest)).statistic + 0.1
    whole = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.Flatten(), nn.Linear(512, 5)
    )
    assert input_in_depth(received(identity_filters(whole))).statistic > 0.95


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
    assert view.features == pytest.approx(1 / 12)
    assert view.pixels == pytest.approx(1 / 12)


def test_tables_are_not_judged_for_passing_inputs_on() -> None:
    found = input_in_depth(received(nn.Linear(20, 5), DataSpec((20,), 5)))
    assert found.statistic == 0
    assert "tables" in found.unjudged[0].reason


def test_a_part_for_each_example_is_seen() -> None:
    found = sub_models(received(Routed()))
    assert found.statistic > 0.1
    assert any(name.startswith("copies.") for name in found.where)


def test_pictures_are_in_range_and_differ(generator: torch.Generator) -> None:
    task = Task.of(perceptron(), DataSpec((3, 8, 8), 5, low=-1.0, high=2.0))
    made = pictures(task, 16, generator)
    assert made.shape == (16, 3, 8, 8)
    assert float(made.min()) >= -1
    assert float(made.max()) <= 2
    assert float(made.mean((1, 2, 3)).std()) > 0.2


@pytest.mark.parametrize("rule", [input_in_depth, sub_models])
def test_measuring_changes_nothing_and_repeats(rule) -> None:
    r = received(nn.Sequential(built("plain"), nn.BatchNorm1d(5), nn.Linear(5, 5)), mode=Mode.TRAIN)
    assert r.task is not None
    before, drawn = copy.deepcopy(r.task), torch.get_rng_state()
    first: Measurement = rule(r)
    # A new object, or the repeat would be answered from memory.
    assert rule(Received(state={}, task=copy.deepcopy(r.task))) == first
    assert torch.equal(torch.get_rng_state(), drawn)
    assert r.task.module.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in r.task.module.modules())
    for mine, theirs in ((r.task.parameters, before.parameters), (r.task.buffers, before.buffers)):
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items())


class InFront(nn.Module):
    """A perceptron on the pixels in front of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.back = nn.Linear(D, 16), nn.Linear(16, D)
        self.rest = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(x + self.back(self.first(x.flatten(1)).relu()).view_as(x))


class Beside(nn.Module):
    """The first `pixels` values of the input beside the features of convolutions."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.pixels = pixels
        self.rest = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.answer = nn.Linear(64 + pixels, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(torch.cat([self.rest(x), x.flatten(1)[:, : self.pixels]], 1))


class Called(nn.Module):
    """A layer that no one calls as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(D, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.linear.weight, self.linear.bias)


class Own(nn.Module):
    """A linear module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(D, 16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Shift(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


@pytest.mark.parametrize(
    ("first", "name"),
    [(Called(), "first.linear"), (Own(), "first"), (nn.Sequential(Shift(), nn.Linear(D, 16)), "first.1")],
    ids=["called", "own", "shifted"],
)
def test_however_a_perceptron_in_front_of_convolutions_is_written(first: nn.Module, name: str) -> None:
    """Only a module of torch's own that is given the pixels themselves was odd; of these nothing was found."""
    module = InFront()
    module.first = first
    found = measure(Received(module.state_dict(), task=Task.of(module, SPEC)))["input-in-depth"]
    assert found.statistic == pytest.approx(1, abs=1e-6)
    assert name in found.where


@pytest.mark.parametrize("pixels", [D, 96, 48])
def test_pixels_beside_features_are_seen(pixels: int) -> None:
    found = input_in_depth(received(Beside(pixels)))
    assert found.statistic >= LIMITS["input-in-depth"]
    assert found.where[0] == "answer"
    assert f"{pixels / D:.0%} of the pixels reach it unchanged" in found.evidence


def test_copies_are_counted_exactly(generator: torch.Generator) -> None:
    probe = torch.rand((2, 100), generator=generator, dtype=torch.float64)
    others = torch.rand((2, 50), generator=generator, dtype=torch.float64)
    assert copied(probe, torch.cat([others, probe[:, 20:60]], 1)) == pytest.approx(0.4)
    assert copied(probe, others) == 0


def test_all_rules_look_at_one_network_in_eval_mode() -> None:
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, 4)), DataSpec((3, 2, 2), 4), mode="train")
    assert in_eval(task) is in_eval(task)
    assert (in_eval(task).mode, in_eval(task).stochastic, task.mode) == (Mode.EVAL, False, Mode.TRAIN)
