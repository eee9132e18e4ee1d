"""Laplace noise: scale in three units, shape, and what the attacker's view states."""

from __future__ import annotations

import math

import pytest
import torch

from leakgauge.defenses import LaplaceNoise, laplace, view_of
from leakgauge.update import Update, UpdateHeader, UpdateKind

N = 200_000
CASES = [laplace(sigma=0.3), laplace(relative=0.5), laplace(tensor_std=0.2)]


def added(defense: LaplaceNoise, t: torch.Tensor) -> torch.Tensor:
    return defense.on_update({"w": t}, torch.Generator().manual_seed(0))["w"] - t


@pytest.mark.parametrize("defense", CASES, ids=repr)
def test_the_standard_deviation_is_the_stated_one(defense: LaplaceNoise) -> None:
    """Kurtosis 6: the estimate's relative error is √(5/4n) = .25 %; 2 % is eight of them, p < 1e-14."""
    t = torch.randn(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sigma = float(defense.scale.of({"w": t})["w"])
    assert float(added(defense, t).std()) == pytest.approx(sigma, rel=0.02)


def test_its_distribution_is_laplace_and_not_gaussian() -> None:
    """Kolmogorov's distance to the distribution function: over .006 at n = 200 000 with p < 2·exp(−2n·.006²) = 1e-6.
    That of a Gaussian of the same spread is .06."""
    x = added(laplace(sigma=math.sqrt(2)), torch.zeros(N, dtype=torch.float64)).sort().values
    exact = torch.where(x < 0, 0.5 * x.exp(), 1 - 0.5 * (-x).exp())
    seen = torch.arange(1, N + 1, dtype=torch.float64) / N
    assert float((exact - seen).abs().max()) < 0.006


def test_the_likelihood_against_a_twin_and_finite_differences() -> None:
    sent = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    raw = torch.tensor([0.1, -1.5, 2.2], dtype=torch.float64)
    view = view_of(laplace(sigma=0.3), Update({"w": sent}, UpdateHeader(UpdateKind.GRADIENT, 1)), None)
    stated = view.log_likelihood
    assert stated is not None
    assert view.noise_scale is not None
    assert not view.gaussian
    assert float(view.noise_scale["w"]) == pytest.approx(0.3)
    assert float(stated({"w": raw})) == pytest.approx(-(0.4 + 0.5 + 0.2) / (0.3 / math.sqrt(2)))
    assert torch.autograd.gradcheck(lambda t: stated({"w": t}), raw.clone().requires_grad_())


def test_edges() -> None:
    defense, g = laplace(sigma=0.1), torch.Generator().manual_seed(0)
    assert defense.on_update({"w": torch.zeros(0)}, g)["w"].shape == (0,)
    assert math.isnan(float(defense.on_update({"w": torch.tensor([float("nan")])}, g)["w"][0]))
    assert laplace(relative=0.1).on_update({"w": torch.zeros(3)}, g)["w"].equal(torch.zeros(3))
    assert laplace(tensor_std=0.1).on_update({"w": torch.tensor([2.0])}, g)["w"].tolist() == [2.0]
