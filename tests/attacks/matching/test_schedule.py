"""Priors whose weight changes during the run."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from cases import batch, task
from leakgauge.attacks.matching import (
    LBFGS,
    Adam,
    BoundedLBFGS,
    Decaying,
    Falling,
    Matching,
    Minimiser,
    NoPrior,
    Pixels,
    TotalVariation,
    Uniform,
)
from leakgauge.attacks.matching.priors import Pull
from leakgauge.attacks.matching.problem import Best, Meter, ObjectiveValues, Problem
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import DataSpec

F64 = torch.float64
ALL: list[Minimiser] = [
    Adam(steps=250, lr=0.3, signed=False),
    LBFGS(steps=60, lr=0.5),
    BoundedLBFGS(steps=60),
]


def test_step_decay_is_the_papers_loop() -> None:
    """i % m == 0 for i > 0; the paper's ``i // m == 0`` would multiply in each of the first m iterations."""
    schedule, weight = Decaying(prior=NoPrior(), factor=0.9, every=5).at, 1.0
    for i in range(23):
        if i > 0 and i % 5 == 0:
            weight *= 0.9
        assert schedule(i, 23, 0.0) == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("steps", [7, 10, 1000])
def test_falling_goes_from_one_to_its_end_and_never_rises(steps: int) -> None:
    schedule = Falling(prior=NoPrior(), to=0.1, levels=5).at
    factors = [schedule(i, steps, 9.0) for i in range(steps)]
    assert factors[0] == 1
    assert factors[-1] == pytest.approx(0.1)
    assert all(b <= a for a, b in pairwise(factors))
    assert len(set(factors)) <= 5
    assert Falling(prior=NoPrior(), to=0.1, levels=3).at(500, 1000, 9.0) == pytest.approx(0.1**0.5)


def test_a_misfit_holds_the_weight_up() -> None:
    schedule = Falling(prior=NoPrior(), to=1e-3, levels=7, misfit=0.5).at
    ladder = [10 ** (-i / 2) for i in range(7)]
    last = 999
    assert schedule(last, 1000, 0.0) == pytest.approx(1e-3)
    assert schedule(last, 1000, 1e-9) == pytest.approx(1e-3)
    for data in (1e-5, 1e-3, 1e-2, 0.1):
        least = 0.5 * (2 * data) ** 0.5
        assert schedule(last, 1000, data) == pytest.approx(min(f for f in ladder if f >= least))
    assert schedule(0, 1000, 1e-9) == 1, "the plan holds it up as well"
    assert schedule(last, 1000, 50.0) == 1
    assert schedule(last, 1000, float("inf")) == 1
    assert schedule(last, 1000, float("nan")) == pytest.approx(1e-3)


def test_the_schedule_is_told_the_data_term_of_the_best_restart() -> None:
    told: list[float] = []

    def schedule(step: int, steps: int, data: float) -> float:
        told.append(data)
        return 1.0

    p = pulled(schedule)
    p.start = {"x": torch.tensor([[3.0, 1.0, 1.0], [1.0, 2.0, 1.0]], dtype=F64)}
    p.reach(0, 2)
    p.evaluate(p.start)
    p.reach(1, 2)
    assert told == [float("inf"), 1.0]


def test_a_lost_restart_does_not_speak_for_the_others() -> None:
    told: list[float] = []

    def schedule(step: int, steps: int, data: float) -> float:
        told.append(data)
        return 1.0

    p = pulled(schedule)
    p.start = {"x": torch.tensor([[float("nan"), 1.0, 1.0], [1.0, 2.0, 1.0]], dtype=F64)}
    p.evaluate(p.start)
    p.reach(1, 3)
    p.evaluate({"x": torch.full((2, 3), float("nan"), dtype=F64)})
    p.reach(2, 3)
    assert told == [1.0, 1.0]


@pytest.mark.parametrize("minimiser", ALL[1:], ids=repr)
def test_who_converges_early_goes_on_under_the_weights_to_come(minimiser: Minimiser) -> None:
    """Each of these is at the bottom within some ten evaluations, long before the last level is due."""
    weights: list[float] = []

    def falls(step: int, steps: int, data: float) -> float:
        weights.append(1.0 if step < steps // 2 else 0.1 if step < steps - 1 else 0.01)
        return weights[-1]

    found = minimiser.minimise(pulled(falls))
    assert found.status is Status.CONVERGED
    assert weights[-1] == 0.01
    assert torch.allclose(found.variables["x"], torch.full((1, 3), 1 / 1.01, dtype=F64), atol=2e-3)


def test_bad_schedules_name_their_field() -> None:
    for make, field in (
        (lambda: Decaying(prior=NoPrior(), every=0), "every"),
        (lambda: Decaying(prior=NoPrior(), factor=-1.0), "factor"),
        (lambda: Falling(prior=NoPrior(), to=0.0), "to"),
        (lambda: Falling(prior=NoPrior(), to=0.1, levels=1), "levels"),
        (lambda: Falling(prior=NoPrior(), to=0.1, misfit=-1.0), "misfit"),
    ):
        with pytest.raises(InputError) as error:
            make()
        assert error.value.field == field


def pulled(schedule, meter: Meter | None = None) -> Problem:
    """(x − 1)² + factor · x², whose bottom is at 1 / (1 + factor)."""

    def loss(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        data = (v["x"] - 1).square().sum()
        return data + v["x"].square().sum(), data

    start = {"x": torch.tensor([[3.0, -2.0, 0.2]], dtype=F64)}
    return Problem(loss, start, {}, meter or Meter(Budget()), schedule=schedule)


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_the_answer_is_the_bottom_under_the_last_weight(minimiser: Minimiser) -> None:
    def drop(step: int, steps: int, data: float) -> float:
        return 1.0 if step < 3 else 1 / 3

    found = minimiser.minimise(pulled(drop))
    assert torch.allclose(found.variables["x"], torch.full((1, 3), 0.75, dtype=F64), atol=2e-3)
    x = found.variables["x"][0]
    assert float(found.total) == pytest.approx(float((x - 1).square().sum() + x.square().sum() / 3), rel=1e-9)


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_a_schedule_of_one_changes_nothing(minimiser: Minimiser) -> None:
    plain, same = minimiser.minimise(pulled(None)), minimiser.minimise(pulled(lambda *_: 1.0))
    assert torch.equal(plain.variables["x"], same.variables["x"])


@pytest.mark.parametrize("minimiser", [m for m in ALL if m.batched] + [BoundedLBFGS(steps=40)], ids=repr)
def test_minimisers_tell_how_far_a_budget_reaches(minimiser: Minimiser) -> None:
    asked: list[tuple[int, int]] = []

    def schedule(step: int, steps: int, data: float) -> float:
        asked.append((step, steps))
        return 0.99 ** len(asked)  # never at rest, so that nothing converges

    minimiser.minimise(pulled(schedule, Meter(Budget(gradient_evaluations=20))))
    assert {steps for _, steps in asked} == {20}
    assert [step for step, _ in asked] == sorted({step for step, _ in asked})
    assert asked[0] == (0, 20)
    assert asked[-1][0] < 20


def test_the_best_point_is_weighed_anew_when_the_weight_falls() -> None:
    def at(total: float, data: float, factor: float) -> ObjectiveValues:
        one = torch.tensor([1.0], dtype=F64)
        return ObjectiveValues(total * one, data * one, {}, factor)

    points = [{"x": torch.full((1, 1), float(i))} for i in range(3)]
    best = Best(1, torch.zeros((), dtype=F64))
    best.offer(points[0], at(1.0 + 2.0, 1.0, 1.0))  # data 1, prior 2: 1.2 under a tenth
    best.offer(points[1], at(1.3, 1.3, 0.1))
    assert float(best.variables["x"]) == 0
    assert float(best.total) == pytest.approx(1.2)
    best.offer(points[2], at(1.1, 1.0, 0.1))
    assert float(best.variables["x"]) == 2


def test_a_scheduled_prior_reaches_the_minimiser_through_the_engine() -> None:
    t, b = task("smooth"), batch(1)
    known = Knowledge(labels=b.labels, example_count=1, local_training=FedSGD())
    seen = Observation(t, client_update(t, FedSGD(), b, Draws(0)), known)

    def run(prior):
        parts = Matching(prior=prior, canvas=Pixels(first=Uniform()), minimiser=Adam(steps=15, lr=0.03), restarts=2)
        return parts.reconstruct(seen, torch.Generator().manual_seed(0)).inputs

    tv = TotalVariation(0.1)
    assert torch.equal(run(tv), run(Decaying(prior=tv, factor=1.0)))
    assert torch.equal(run(tv), run(Decaying(prior=tv, factor=0.5, every=1000)))
    assert not torch.equal(run(tv), run(Decaying(prior=tv, factor=0.5, every=5)))
    assert not torch.equal(run(tv), run(Falling(prior=tv, to=0.1)))
    assert "two spatial axes" in Decaying(prior=tv).refuses(DataSpec((4,), 2))


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize(("share", "least"), [(0.5, 0.0), (0.5, 30.0)])
def test_a_balanced_prior_pulls_with_its_share_or_with_what_is_asked(restarts: int, share: float, least: float) -> None:
    start = {"x": torch.randn((restarts, 4), generator=torch.Generator().manual_seed(0), dtype=torch.float64)}
    penalty = lambda v: v["x"].abs().sum()  # noqa: E731
    loss = lambda v: ((v["x"] - 3).pow(4).sum(),) * 2  # noqa: E731
    problem = Problem(loss, start, {}, Meter(Budget()), pull=Pull(penalty, share))
    problem.factor = least
    at = problem.evaluate(start)
    for x, slope, total in zip(start["x"], at.gradient["x"], at.total, strict=True):
        data = 4 * (x - 3) ** 3
        weight = max(share * float(data.norm()) / 2, least)  # four signs have the norm 2
        torch.testing.assert_close(slope, data + weight * x.sign())
        torch.testing.assert_close(total, (x - 3).pow(4).sum())
