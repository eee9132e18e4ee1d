"""What a layer gives away by its place: odd places are seen, natural ones only named."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from cases import SPEC
from leakgauge.inspection.layers import LAYER_RULES, LayerPlaces, copied, layer_rule, rule_of, sites
from leakgauge.inspection.rule import Measurement, Received, measure
from leakgauge.task import DataSpec, Mode, Task

D = 192


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


class InFront(nn.Module):
    """A perceptron on the pixels in front of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.back, self.rest = nn.Linear(D, 16), nn.Linear(16, D), small_cnn()

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(x + self.back(self.first(x.flatten(1)).relu()).view_as(x))


class Beside(nn.Module):
    """The first `pixels` values of the input beside the features of convolutions."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.pixels = pixels
        self.rest = nn.Sequential(*list(small_cnn())[:-1])
        self.answer = nn.Linear(64 + pixels, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.answer(torch.cat([self.rest(x), x.flatten(1)[:, : self.pixels]], 1))


class Patches(nn.Module):
    """Patch embedding, learned positions, one block of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.zeros(1, 4, 8))
        self.norm, self.mix, self.answer = (
            nn.LayerNorm(8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 5),
        )

    def forward(self, x: Tensor) -> Tensor:
        t = self.embed(x).flatten(2).mT + self.place
        t = t + self.mix(self.norm(t), self.norm(t), self.norm(t), need_weights=False)[0]
        return self.answer(t.mean(1))


def measured(module: nn.Module, mode: Mode = Mode.EVAL, data: DataSpec = SPEC) -> Measurement:
    task = Task.of(module, data, mode=mode)
    return LayerPlaces().measure(Received(state={}, module=task.module, task=task))


def test_a_perceptron_reads_its_input_by_nature() -> None:
    found = measured(nn.Sequential(nn.Flatten(), nn.Linear(D, 16), nn.ReLU(), nn.Linear(16, 5)))
    assert found.statistic == 0
    assert "1 reads the input itself: its rows divided by its bias" in found.evidence
    assert not found.unjudged


def test_a_layer_without_bias_is_said_to_show_rows_up_to_a_factor() -> None:
    found = measured(nn.Sequential(nn.Flatten(), nn.Linear(D, 16, bias=False), nn.ReLU(), nn.Linear(16, 5)))
    assert "no bias" in found.evidence


def test_a_perceptron_in_front_of_convolutions_is_odd() -> None:
    found = measured(InFront())
    assert found.statistic == 1
    assert found.where == ("first",)


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
    found = measure(Received(module.state_dict(), task=Task.of(module, SPEC)))
    assert found["layers"].statistic == 1.0
    assert found["layers"].where == (name,)
    assert f"{name} reads the input itself" in found["layers"].evidence
    assert not [o for o in found["layers"].unjudged if o.name.startswith(("first", "layers", "rest"))]
    assert not [o for o in found["couplings"].unjudged if "traced" in o.reason]


@pytest.mark.parametrize("pixels", [D, 96, 48])
def test_copies_of_pixels_beside_features_are_counted(pixels: int) -> None:
    found = measured(Beside(pixels))
    assert found.statistic == pytest.approx(pixels / D, abs=0.01)
    assert found.where == ("answer",)


def test_tables_may_skip() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep, self.answer = nn.Linear(20, 8), nn.Linear(28, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.answer(torch.cat([self.deep(x).relu(), x], 1))

    assert measured(Wide(), data=DataSpec((20,), 5)).statistic == 0


@pytest.mark.parametrize("module", [small_cnn(), Patches()], ids=["cnn", "patches"])
def test_ordinary_networks_have_nothing_odd(module: nn.Module) -> None:
    assert measured(module).statistic == 0


def test_a_patch_embedding_is_named_and_the_unknown_explains_itself() -> None:
    found = measured(Patches())
    assert "embed embeds patches of the input" in found.evidence
    assert any(
        u.name == "model" and u.reason.startswith("no rule for Patches, which holds parameters itself")
        for u in found.unjudged
    )
    assert any(u.name == "mix" and u.reason.startswith("no rule for MultiheadAttention") for u in found.unjudged)
    # Attention calls its output projection's weights, not the module.
    assert any(u.name == "mix.out_proj" and u.reason.startswith("is not called as a module") for u in found.unjudged)


def test_batch_norm_is_named_in_train_mode_only() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5))
    assert "leave with the reply" in measured(module, Mode.TRAIN).evidence
    assert "leave with the reply" not in measured(module, Mode.EVAL).evidence


def test_token_rows_are_named() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.answer = nn.Embedding(10, 4), nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.answer(self.words(x.long()).mean(1))

    assert "token" in measured(Tokens(), data=DataSpec((6,), 5, high=9.0)).evidence


def test_the_nearest_type_decides() -> None:
    class Mine(nn.Linear):
        pass

    assert rule_of(Mine(2, 2)) is LAYER_RULES[nn.Linear]
    assert rule_of(nn.Bilinear(2, 2, 2)) is None

    @layer_rule(Mine)
    def mine(_) -> None:
        return None

    try:
        assert rule_of(Mine(2, 2)) is mine
        assert rule_of(nn.Linear(2, 2)) is LAYER_RULES[nn.Linear]
    finally:
        del LAYER_RULES[Mine]


def test_copies_are_counted_exactly(generator: torch.Generator) -> None:
    probe = torch.rand((2, 100), generator=generator, dtype=torch.float64)
    others = torch.rand((2, 50), generator=generator, dtype=torch.float64)
    assert copied(probe, torch.cat([others, probe[:, 20:60]], 1)) == pytest.approx(0.4)
    assert copied(probe, others) == 0


def test_sites_are_in_order_of_execution() -> None:
    task = Task.of(InFront(), SPEC)
    assert [s.name for s in sites(task)] == ["first", "back", "rest.0", "rest.3"]


def test_the_task_stays_as_it_is() -> None:
    task = Task.of(InFront(), SPEC, mode=Mode.TRAIN)
    before = copy.deepcopy(task)
    first = LayerPlaces().measure(Received(state={}, task=task))
    assert LayerPlaces().measure(Received(state={}, task=task)) == first
    assert task.module.training
    assert all(not m._forward_pre_hooks for m in task.module.modules())
    assert all(torch.equal(v, before.module.state_dict()[k]) for k, v in task.module.state_dict().items())
