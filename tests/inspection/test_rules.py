"""Each rule that needs tensors alone: crafted ones above its limit, honest ones below."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from inspection import honest
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Limits, Part, Received, measure, rules
from leakgauge.inspection.rules.copies import regularity

LIMITS = Limits.packaged().limits
State = dict[str, Tensor]


def base() -> State:
    return honest.initialised(lambda _: None)


def score(rule: str, state: State, **known: State) -> float:
    received = Received(state, **known)
    assert not received.lacks(rules()[rule].needs)
    return rules()[rule].measure(received).statistic / LIMITS[rule]


def _draw(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def taps(noise: float = 0.0, gains: bool = False) -> State:
    """The last convolution passes on: 48 of its 64 rows hold one tap in their order."""
    state = base()
    weight = state["6.weight"].clone()
    weight[:48] = noise * weight.std() * _draw(48, 64, 3, 3)
    for row in range(48):
        weight[row, (7 * row) % 64, 1, 1] = float(weight[48:].std()) * (1 + row % 3) if gains else 1.0
    return state | {"6.weight": weight}


def imprint(noise: float = 0.0) -> State:
    """All rows of the first linear layer equal, its thresholds a ladder in mixed order."""
    row = _draw(256) / 16
    levels = torch.linspace(1 / 129, 128 / 129, 128)[torch.randperm(128, generator=torch.Generator().manual_seed(1))]
    return base() | {
        "10.weight": row.expand(128, -1) + noise * _draw(128, 256) / 16,
        "10.bias": -torch.special.ndtri(levels),
    }


def trap(scale: float = 0.95, halves: bool = True) -> State:
    """Negative entries larger than positive ones: of a half of each row exactly, or of all that are negative."""
    weight = base()["10.weight"].clone()
    if halves:
        g = torch.Generator().manual_seed(2)
        for row in weight:
            order = torch.randperm(256, generator=g)
            size = row[order[:128]].abs()
            row[order[:128]], row[order[128:]] = -size, scale * size
    else:
        weight = weight.where(weight < 0, scale * weight)
    return base() | {"10.weight": weight}


def grey(rows: Tensor) -> State:
    """A first convolution on one channel, half of which are these filters."""
    return base() | {"0.weight": torch.cat([rows, _draw(8, 9)]).view(16, 1, 3, 3)}


def changed(name: str, index: object, value: float, ones: object = ()) -> State:
    state = base()
    tensor = state[name].clone()
    tensor[index] = value  # type: ignore[index]
    if ones:
        tensor[ones] = 1.0  # type: ignore[index]
    return state | {name: tensor}


CRAFTED: dict[str, tuple[str, Callable[[], State]]] = {
    "taps": ("taps", taps),
    "taps-with-gains-and-noise": ("taps", lambda: taps(noise=0.03, gains=True)),
    "dirac": ("taps", lambda: base() | {"6.weight": nn.init.dirac_(torch.empty(64, 64, 3, 3))}),
    "identity-linear": ("taps", lambda: base() | {"10.weight": torch.eye(128, 256)}),
    "constant": ("constant-rows", lambda: base() | {"10.weight": torch.full((128, 256), 1 / 256)}),
    "constant-noisy": ("constant-rows", lambda: base() | {"10.weight": (1 + 0.05 * _draw(128, 256)) / 256}),
    "imprint-copies": ("copies", imprint),
    "copying-filters": ("copies", lambda: changed("0.weight", slice(None), 0.0, (slice(None), 0, 1, 1))),
    "copying-filters-grey": ("copies", lambda: changed("0.weight", slice(8), 0.0, (slice(8), slice(None), 1, 1))),
    "head-of-one-row": ("copies", lambda: base() | {"12.weight": 100 * base()["12.weight"][:1].repeat(10, 1)}),
    "head-of-one-direction": (
        "copies",
        lambda: base() | {"12.weight": base()["12.weight"][:1] * torch.arange(1, 11)[:, None]},
    ),
    "head-of-two": ("copies", lambda: base() | {"12.weight": base()["12.weight"][:1].repeat(2, 1)}),
    "grey-taps-in-half-of-a-layer": ("copies", lambda: grey(torch.eye(9)[4].repeat(8, 1))),
    "grey-filters-in-half-of-a-layer": ("copies", lambda: grey(_draw(1, 9).repeat(8, 1))),
    "grey-filters-and-gains": ("copies", lambda: grey(_draw(1, 9) * torch.arange(1, 9)[:, None])),
    "grey-taps-and-gains": ("copies", lambda: grey(torch.eye(9)[4] * torch.arange(1, 9)[:, None])),
    "mirrored": (
        "copies",
        lambda: base() | {"10.weight": torch.cat([_draw(64, 256), -3 * _draw(64, 256)]) / 16},
    ),
    "trap-halves": ("trap-weights", trap),
    "trap-scaled": ("trap-weights", lambda: trap(0.8, halves=False)),
    "decoy": ("decoy-class", lambda: changed("12.bias", 4, 30.0)),
    "silenced-classes": ("decoy-class", lambda: changed("12.bias", slice(1, 5), -1000.0)),
    "sleeping": ("extreme-bias", lambda: changed("10.bias", slice(20, None), -200.0)),
    "sleeping-all": ("extreme-bias", lambda: changed("10.bias", slice(None), -200.0)),
    "sleeping-norm": ("extreme-bias", lambda: changed("1.bias", slice(6, None), -100.0)),
    "feature-fishing": ("huge-weights", lambda: changed("12.weight", (2, 5), 300.0)),
    "nan": ("not-finite", lambda: changed("10.weight", (3, 4), math.nan)),
    "infinite": ("not-finite", lambda: changed("1.running_var", 3, math.inf)),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_is_above_the_limit(name: str) -> None:
    rule, state = CRAFTED[name]
    assert score(rule, state()) >= 1


@pytest.mark.parametrize("name", CRAFTED)
def test_says_where(name: str) -> None:
    rule, make = CRAFTED[name]
    state, plain = make(), base()
    found = rules()[rule].measure(Received(state))
    assert not torch.equal(state[found.where[0]], plain[found.where[0]])


@pytest.mark.parametrize("kind", honest.KINDS)
def test_honest_is_below_every_limit(kind: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        state = honest.KINDS[kind]()
    found = measure(Received(state))
    assert {rule: m for rule, m in found.items() if m.statistic >= LIMITS[rule]} == {}


@pytest.mark.parametrize("kind", ["torch-default", "half", "pruned-90", "trained"])
def test_state_is_not_changed_and_twice_the_same(kind: str) -> None:
    state = honest.KINDS[kind]()
    before = {name: tensor.clone() for name, tensor in state.items()}
    assert measure(Received(state)) == measure(Received(state))
    assert all(torch.equal(state[name], before[name]) for name in state)


SCALE_FREE = ("taps", "constant-rows", "copies", "trap-weights")


@pytest.mark.parametrize("rule", SCALE_FREE)
@given(power=st.integers(-20, 20), crafted=st.booleans())
def test_statistic_is_free_of_the_layers_scale(rule: str, power: int, crafted: bool) -> None:
    whole = imprint(noise=0.1) if crafted else base()
    state = {name: t for name, t in whole.items() if name.startswith(("10", "12"))}
    scaled = {name: t * 2.0**power for name, t in state.items()}
    before, after = (rules()[rule].measure(Received(s)).statistic for s in (state, scaled))
    assert after == pytest.approx(before, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("rule", ["decoy-class", "extreme-bias"])
@given(power=st.integers(-10, 10))
def test_threshold_rules_follow_weights_and_biases_together(rule: str, power: int) -> None:
    state = {name: t for name, t in changed("12.bias", 4, 30.0).items() if name.startswith(("10", "12"))}
    # Far below torch's default size, weights count as collapsed for extreme-bias.
    scaled = {name: t * 2.0 ** (max(power, -2) if rule == "extreme-bias" else power) for name, t in state.items()}
    before, after = (rules()[rule].measure(Received(s)).statistic for s in (state, scaled))
    assert after == pytest.approx(before, rel=1e-4)


def test_copies_counts_like_brute_force() -> None:
    weight = _draw(60, 200)
    weight[7], weight[30], weight[31] = 2 * weight[3], -weight[3], 0.5 * weight[12]
    cosine = torch.nn.functional.cosine_similarity(weight[:, None], weight[None], dim=2).abs() - 2 * torch.eye(60)
    rows = int((cosine.max(1).values > 0.999).sum())
    assert rows == 5
    assert rules()["copies"].measure(Received({"a.weight": weight})).statistic == pytest.approx(rows / (1 + 60 / 50))


@pytest.mark.parametrize("name", ["input_embedding", "time_embed", "token_proj_embedding.0"])
def test_a_layer_with_a_bias_is_no_table_whatever_its_name(name: str) -> None:
    """Every rule left a first layer called so out, and a crafted one passed."""
    weight, steps = torch.randn(64).repeat(32, 1), torch.linspace(-1, 1, 32)
    state = {f"{name}.weight": weight, f"{name}.bias": steps, "head.weight": torch.randn(5, 32)}
    found = measure(Received(state))
    assert found["copies"].where == (f"{name}.weight",)


def test_classes_that_never_occur_are_no_copies() -> None:
    """A head that started at zero and saw three of ten classes; the rows of the others are one direction."""
    features = _draw(60, 64).relu()
    labels = torch.arange(60) % 3
    weight = torch.zeros(10, 64, requires_grad=True)
    for _ in range(20):
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(features @ weight.T, labels), weight)
        weight = (weight - slope).detach().requires_grad_()
    cosine = torch.nn.functional.cosine_similarity(weight[3], weight[9], dim=0)
    assert float(cosine.detach()) > 1 - 1e-5
    found = rules()["copies"].measure(Received(base() | {"12.weight": weight.detach()}))
    assert found.statistic == 0
    assert any("never occur" in u.reason for u in found.unjudged if u.name == "12.weight")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_survivors_at_one_place_are_no_copies(keep: int) -> None:
    """Pruning and rounding to few levels leave equal rows by chance."""
    state = base()
    for name in ("0.weight", "3.weight", "6.weight", "10.weight"):
        flat = state[name].flatten(1)
        kept = flat.abs().topk(keep, dim=1).indices
        state[name] = torch.zeros_like(flat).scatter(1, kept, flat.gather(1, kept).sign()).view_as(state[name])
    assert score("copies", state) < 1


@pytest.mark.parametrize("rank", [3, 4, 16])
@pytest.mark.parametrize("rule", ["copies", "trap-weights"])
def test_factorised_layers_are_honest(rule: str, rank: int) -> None:
    state = base() | {"10.weight": _draw(128, rank) @ _draw(rank, 256, seed=6) / 16}
    assert score(rule, state) < 1


def test_biases_beside_collapsed_weights_are_honest() -> None:
    state = base()
    state["10.weight"] = state["10.weight"] * 1e-6
    state["10.bias"] = 0.1 * _draw(128)
    assert score("extreme-bias", state) < 1
    state["10.bias"][20:] = -200.0
    assert score("extreme-bias", state) >= 1


@pytest.mark.parametrize("after", ["pruned", "noised", "rounded"])
def test_what_pruning_leaves_of_skewed_rows_is_no_trap(after: str) -> None:
    draw = _draw(128, 256)
    weight = draw + 0.1 * draw**2  # training skews
    kept = weight * (weight.abs() > weight.abs().quantile(0.9))
    if after == "noised":
        kept = kept + 0.02 * kept.std() * _draw(128, 256, seed=8)
    if after == "rounded":
        kept = (kept / kept.abs().max() * 7).round()
    assert score("trap-weights", base() | {"10.weight": kept}) < 1


def test_survivors_of_decay_are_irregular_and_taps_are_regular() -> None:
    generator = torch.Generator().manual_seed(4)
    decayed = 1e-3 * _draw(64, 64, 3, 3)
    size = torch.empty(64).exponential_(generator=generator) + 0.05
    place = torch.randint(9, (64,), generator=generator)
    for row in range(64):
        decayed[row, (5 * row) % 64, place[row] // 3, place[row] % 3] = size[row]
    assert score("taps", base() | {"6.weight": decayed}) < 1
    assert score("taps", taps(noise=0.01)) >= 1
    assert score("taps", taps(noise=0.01, gains=True)) >= 1


def test_regularity_counts_equal_sizes_and_equal_places() -> None:
    sizes, places = torch.tensor([1.0, 1.01, 1.04, 2.0, 3.0]), torch.tensor([4, 4, 4, 4, 0])
    assert regularity(sizes, places, 1) == pytest.approx(3 / 5)
    assert regularity(sizes, places, 9) == pytest.approx((4 / 5 - 1 / 9) / (1 - 1 / 9))
    assert regularity(sizes[:0], places[:0], 9) == 0


def test_copies_in_many_rows_are_found_by_sorting() -> None:
    weight = _draw(9000, 60)
    weight[5000:5300] = -2 * weight[:300]
    found = rules()["copies"].measure(Received({"a.weight": weight}))
    assert found.statistic == pytest.approx(600 / (1 + 9000 / 50), rel=0.02)


@pytest.mark.parametrize("known", ["reference", "previous"])
class TestAgainstAKnownModel:
    def test_small_steps_and_pruning_are_honest(self, known: str) -> None:
        old = base()
        near = {k: t + 0.1 * t.std() * _draw(*t.shape) if t.dim() > 1 else t for k, t in old.items()}
        for new in (old, near, honest.pruned(near, 0.5), honest.without_filters(near), honest.quantised(near, 4)):
            for rule in ("replaced", "relabelled"):
                assert score(f"{rule}-{known}", new, **{known: old}) < 1

    def test_replaced_rows(self, known: str) -> None:
        assert score(f"replaced-{known}", taps(), **{known: base()}) >= 1
        assert score(f"replaced-{known}", imprint(), **{known: base()}) >= 1

    def test_swapped_classes(self, known: str) -> None:
        order = [1, 0, *range(2, 10)]
        state = base() | {name: base()[name][order] for name in ("12.weight", "12.bias")}
        found = rules()[f"relabelled-{known}"].measure(Received(state, **{known: base()}))
        assert found.statistic == 2
        assert "0 has 1's" in found.evidence

    def test_zero_layer_that_was_started(self, known: str) -> None:
        old = changed("12.weight", slice(None), 0.0)
        for rule in ("replaced", "relabelled"):
            assert score(f"{rule}-{known}", base(), **{known: old}) < 1


def test_not_finite_layers_are_named_by_the_other_rules() -> None:
    found = measure(Received(changed("10.weight", (3, 4), math.nan)))
    assert any(u.name == "10.weight" for u in found["taps"].unjudged)
    assert found["not-finite"].statistic == 1


def test_integers_are_named() -> None:
    found = measure(Received({"a.weight": torch.ones(20, 20, dtype=torch.int8)}))
    assert found["copies"].unjudged[0] == Omission("a.weight", "integers (int8) without their scale")


def test_every_rule_says_what_it_needs_and_means() -> None:
    for rule in rules().values():
        assert rule.needs
        assert all(isinstance(part, Part) for part in rule.needs)
        assert rule.meaning.endswith(".")
