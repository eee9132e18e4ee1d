"""A prior that weighs as much as what is unexplained."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.attacks.matching import Adam, TotalVariation
from leakgauge.attacks.matching.priors import NoPrior, Proportional
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.compute import Budget
from leakgauge.errors import InputError


def numbers(most: float) -> st.SearchStrategy[float]:
    return st.integers(0, 10**6).map(lambda i: most * i / 10**6)


@given(numbers(10), numbers(1e3))
def test_the_factor_is_a_share_of_the_data_term(share: float, data: float) -> None:
    assert Proportional(prior=NoPrior(), share=share).at(3, 10, data) == share * data


@given(numbers(2), numbers(1e-2), numbers(1e-2))
def test_the_factor_stays_between_its_bounds(data: float, least: float, more: float) -> None:
    bounded = Proportional(prior=NoPrior(), share=150.0, power=2.0, least=least, most=least + more).at
    free = Proportional(prior=NoPrior(), share=150.0, power=2.0).at(0, 10, data)
    assert free == pytest.approx(150 * data * data)
    at = bounded(0, 10, data)
    assert least <= at <= least + more
    assert at == free or (at == least and free < least) or (at == least + more and free > at)


def test_before_the_first_evaluation_and_after_a_broken_one_it_is_finite() -> None:
    for data in (math.inf, math.nan):
        assert Proportional(prior=NoPrior(), share=0.2).at(0, 10, data) == 0.2
    assert Proportional(prior=NoPrior()).at(0, 10, -1e-8) == 0


@pytest.mark.parametrize("wrong", [{"share": -0.1}, {"power": 0.0}, {"least": -1.0}, {"least": 2.0, "most": 1.0}])
def test_wrong_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Proportional(prior=NoPrior(), **wrong)


def test_a_step_goes_down_the_logarithm_of_the_data_term_and_the_prior() -> None:
    prior = Proportional(prior=TotalVariation(1.0, smoothing=1e-3), share=0.7)

    def loss(v):
        data = v["pixels"].square().mean() + 0.1
        return data + prior(v["pixels"]), data

    start = {"pixels": torch.randn((1, 1, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    problem = Problem(loss, start, {}, Meter(Budget()), schedule=prior.at)
    problem.evaluate(start)
    problem.reach(1, 10)
    slope = problem.evaluate(start).gradient["pixels"]
    leaf = start["pixels"].clone().requires_grad_()
    data = leaf.square().mean() + 0.1
    whole = data.log() + 0.7 * prior(leaf[0])
    expected = float(data.detach()) * torch.autograd.grad(whole, leaf)[0]
    torch.testing.assert_close(slope, expected)


def test_scaling_the_data_term_changes_no_signed_step() -> None:
    prior = Proportional(prior=TotalVariation(1.0))
    start = {"pixels": torch.randn((1, 1, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)}

    def run(scale: float) -> torch.Tensor:
        def loss(v):
            data = scale * ((v["pixels"] - 1).square().mean() + 0.1)
            return data + prior(v["pixels"]), data

        problem = Problem(loss, start, {}, Meter(Budget()), schedule=prior.at)
        problem.evaluate(start)  # from here on the data term is known
        return Adam(steps=20).minimise(problem).variables["pixels"]

    torch.testing.assert_close(run(1.0), run(2.0**-10))
