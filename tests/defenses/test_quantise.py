"""Rounding to a few values: counts, bias, edge cases, and the likelihoods that the attacker's view states."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from leakgauge.defenses import QSGD, Compose, Quantise, TopK, view_of
from leakgauge.defenses.compression import OUTSIDE
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind


def sent_by(defense: Quantise | Compose, t: Tensor, seed: int = 0) -> Tensor:
    return defense.on_update({"w": t}, torch.Generator().manual_seed(seed))["w"]


def update(tensors: Tensors) -> Update:
    return Update(tensors, UpdateHeader(UpdateKind.GRADIENT, 1))


@pytest.mark.parametrize("levels", [1, 3, 7])
@pytest.mark.parametrize("make", [lambda s: Quantise(levels=s), lambda s: QSGD(levels=s)], ids=["quantise", "qsgd"])
def test_a_tensor_takes_at_most_two_s_plus_one_values_zero_and_both_ends_among_them(make, levels: int) -> None:
    t = torch.linspace(-2, 2, 4001)
    values = sent_by(make(levels), t).unique()
    assert len(values) == 2 * levels + 1
    assert torch.allclose(values, torch.linspace(-2, 2, 2 * levels + 1), atol=1e-6)


def test_three_bits_are_seven_values_by_default() -> None:
    assert len(sent_by(Quantise(), torch.linspace(-4, 4, 1001)).unique()) == 7


@pytest.mark.parametrize("levels", [1, 3, 7])
def test_no_entry_moves_by_more_than_half_a_step_and_the_nearest_value_is_taken(levels: int) -> None:
    t = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sent, top = sent_by(Quantise(levels=levels), t), t.abs().max()
    grid = torch.linspace(-float(top), float(top), 2 * levels + 1, dtype=torch.float64)
    nearest = grid[(t[:, None] - grid).abs().argmin(1)]
    assert torch.allclose(sent, nearest, atol=1e-12)
    assert float((sent - t).abs().max()) <= float(top) / (2 * levels) + 1e-12


@pytest.mark.parametrize("norm", [None, 2.0, 1.0])
def test_qsgd_is_unbiased(norm: float | None) -> None:
    """1000 draws of 5 entries. Hoeffding: a mean is off by more than Δ·√(ln(2·5/1e-9)/2n) = .11 Δ with p < 1e-9."""
    t, draws = torch.tensor([0.9, -0.33, 0.15, 0.0, -1.0], dtype=torch.float64), 1000
    defense = QSGD(levels=2, norm=norm)
    g = torch.Generator().manual_seed(0)
    mean = torch.stack([defense.on_update({"w": t}, g)["w"] for _ in range(draws)]).mean(0)
    step = float(defense.length(t)) / 2
    assert float((mean - t).abs().max()) < step * math.sqrt(math.log(10 / 1e-9) / (2 * draws))


def test_qsgd_rounds_to_a_neighbour_of_the_grid_of_its_norm() -> None:
    t = torch.randn(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    step = float(t.norm()) / 5
    codes = sent_by(QSGD(levels=5, norm=2.0), t) / step
    assert torch.allclose(codes, codes.round(), atol=1e-9)
    assert float((codes - t / step).abs().max()) < 1


@pytest.mark.parametrize("defense", [Quantise(), QSGD(), QSGD(norm=2.0)], ids=repr)
def test_edges(defense: Quantise) -> None:
    nan = float("nan")
    assert sent_by(defense, torch.zeros(4)).equal(torch.zeros(4))
    assert sent_by(defense, torch.zeros(0)).shape == (0,)
    assert sent_by(defense, torch.tensor([-0.7])).tolist() == pytest.approx([-0.7])
    assert bool(sent_by(defense, torch.tensor([1.0, nan, 0.0])).isnan().all())
    for tensors in ({"w": torch.zeros(4)}, {"w": torch.zeros(0)}, {"w": torch.tensor([0.5])}):
        stated = view_of(defense, update(tensors), None).log_likelihood
        assert stated is not None
        assert bool(torch.isfinite(stated({"w": torch.zeros_like(tensors["w"])})))


def test_the_view_of_a_quantiser_rounds_forwards_and_passes_gradients_through() -> None:
    raw = torch.randn(50, dtype=torch.float64, requires_grad=True)
    sent = sent_by(Quantise(), raw.detach())
    view = view_of(Quantise(), update({"w": sent}), None)
    out = view({"w": raw})["w"]
    assert torch.allclose(out, sent, atol=1e-12)
    out.sum().backward()
    assert raw.grad is not None
    assert bool((raw.grad == 1).all())


def by_hand(raw: list[float], sent: list[float], step: float) -> float:
    total = 0.0
    for g, s in zip(raw, sent, strict=True):
        p = 1 - abs(g - s) / step
        total += math.log(p) if p > OUTSIDE else math.log(OUTSIDE) + (p - OUTSIDE) / OUTSIDE
    return total


def test_the_likelihood_of_stochastic_rounding_is_the_probability_of_what_was_sent() -> None:
    """Against frequencies: of g = .3 Δ, a share .7 of 40 000 draws is 0. Off by .015 with p < 1e-7 (Hoeffding)."""
    g = torch.full((40_001,), 0.1, dtype=torch.float64)
    g[0] = 1.0
    sent = sent_by(QSGD(levels=3), g)[1:]
    share = float((sent == 0).double().mean())
    seen = torch.tensor([1.0, 0.0], dtype=torch.float64)
    stated = view_of(QSGD(levels=3), update({"w": seen}), None).log_likelihood
    assert stated is not None
    assert math.exp(float(stated({"w": torch.tensor([1.0, 0.1], dtype=torch.float64)}))) == pytest.approx(
        share, abs=0.015
    )


@pytest.mark.parametrize("norm", [None, 2.0])
def test_the_likelihood_of_stochastic_rounding_against_a_twin_and_finite_differences(norm: float | None) -> None:
    sent = torch.tensor([0.9, -0.3, 0.0, 0.3], dtype=torch.float64)
    raw = torch.tensor([0.85, -0.1, 0.2, 1.5], dtype=torch.float64)
    stated = view_of(QSGD(levels=3, norm=norm), update({"w": sent}), None).log_likelihood
    assert stated is not None
    assert float(stated({"w": raw})) == pytest.approx(by_hand(raw.tolist(), sent.tolist(), 0.3))
    assert torch.autograd.gradcheck(lambda t: stated({"w": t}), raw.clone().requires_grad_())


@pytest.mark.parametrize("levels", [4, 40, 2**20])
def test_the_step_of_a_euclidean_grid_is_read_off_the_wire(levels: int) -> None:
    """Of many levels no entry may be one step long: the smallest was taken for it all the same."""
    t = torch.randn(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    sent = sent_by(QSGD(levels=levels, norm=2.0), t)
    assert float(QSGD(levels=levels, norm=2.0).step(sent)) == pytest.approx(float(t.norm()) / levels, rel=1e-4)


def test_a_tensor_that_the_p_norm_rounded_to_zeros_says_nothing() -> None:
    """It is no proof of a zero gradient, as one tensor of a LeNet was in one draw of five (levels=1)."""
    sent = {"w": torch.tensor([0.5, 0.0, -0.5]), "b": torch.zeros(3)}
    stated = view_of(QSGD(levels=1, norm=2.0), update(sent), None).log_likelihood
    assert stated is not None
    raw = {"w": torch.tensor([0.4, 0.1, -0.3]), "b": torch.tensor([1e-3, -2e-3, 0.0], requires_grad=True)}
    alone = view_of(QSGD(levels=1, norm=2.0), update({"w": sent["w"]}), None).log_likelihood
    assert alone is not None
    found = stated(raw)
    assert float(found.detach()) == pytest.approx(float(alone({"w": raw["w"]})))
    (gradient,) = torch.autograd.grad(found, raw["b"])
    assert torch.equal(gradient, torch.zeros(3))
    # The largest entry of a tensor of zeros is zero: there they are certain.
    certain = view_of(QSGD(levels=1), update(sent), None).log_likelihood
    assert certain is not None
    assert float(certain(raw).detach()) < 1e6 * float(alone({"w": raw["w"]}))


def test_composed_with_a_sparsifier_the_grid_is_the_same_and_the_likelihood_that_of_what_was_kept() -> None:
    t = torch.randn(100, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    both = Compose((TopK(keep=0.1), Quantise(levels=3)))
    sent = sent_by(both, t)
    assert int((sent != 0).sum()) <= 10
    stated = view_of(both, update({"w": sent}), None).log_likelihood
    alone = view_of(Quantise(levels=3), update({"w": sent}), None).log_likelihood
    assert stated is not None
    assert alone is not None
    assert float(stated({"w": t})) == float(alone({"w": t * (sent != 0)}))
