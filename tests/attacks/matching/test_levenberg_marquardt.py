"""Levenberg–Marquardt against dense linear algebra and problems whose answer is known."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from cases import batch, task
from leakgauge.attacks.matching import (
    Cosine,
    LevenbergMarquardt,
    Matching,
    NoPrior,
    Objective,
    Pixels,
    SquaredL2,
    TotalVariation,
    Uniform,
)
from leakgauge.attacks.matching.levenberg_marquardt import _Model
from leakgauge.attacks.matching.problem import Meter, Over, Problem
from leakgauge.attacks.matching.residuals import Linearisation, Squares, has_residual, residual
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import AttackerView
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.pixel import PSNR
from leakgauge.observation import Knowledge, Observation, Status

F64 = torch.float64


def rosenbrock(v: dict[str, Tensor]) -> Tensor:
    x, y = v["x"][:2], v["x"][2:]
    return torch.cat([1 - x, 10**0.5 * (y - x.square())])


def curved(v: dict[str, Tensor]) -> Tensor:
    """Seven residuals of two named variables, six numbers."""
    a = torch.arange(42, dtype=F64).reshape(7, 6).sin()
    return (a @ torch.cat([v["x"], v["y"].flatten()])).tanh() - torch.linspace(-0.5, 0.4, 7, dtype=F64)


def bowl_prior(v: dict[str, Tensor]) -> Tensor:
    return 0.3 * sum((x - 0.1).square().sum() + (x.square() + 0.1).sqrt().sum() for x in v.values())


def nothing(v: dict[str, Tensor]) -> Tensor:
    return next(iter(v.values())).new_zeros(())


def problem(
    r: Callable[[dict[str, Tensor]], Tensor] = rosenbrock,
    prior: Callable[[dict[str, Tensor]], Tensor] = nothing,
    *,
    start: dict[str, Tensor] | None = None,
    bounds=None,
    meter: Meter | None = None,
    cost: int = 1,
    schedule=None,
) -> Problem:
    def loss(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        data = r(v).square().sum()
        return data + prior(v), data

    first = start or {"x": torch.tensor([[-1.2, 0.5, 1.0, -0.7]], dtype=F64)}
    squares = Squares(r, prior)
    return Problem(loss, first, bounds or {}, meter or Meter(Budget()), cost, schedule=schedule, squares=squares)


def two() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {"x": torch.randn(1, 2, generator=g, dtype=F64), "y": torch.randn(1, 2, 2, generator=g, dtype=F64)}


def dense(r: Callable[[dict[str, Tensor]], Tensor], point: dict[str, Tensor]) -> Tensor:
    """J by the other automatic differentiation, one row a residual."""
    rows = jacrev(r)({k: v[0] for k, v in point.items()})
    return torch.cat([rows[k].flatten(1) for k in point], 1)


def test_products_are_those_of_the_dense_jacobian_and_of_finite_differences() -> None:
    point = two()
    at, j = problem(curved, bowl_prior, start=point).linearise(point), dense(curved, point)
    g = torch.Generator().manual_seed(1)
    u, v = torch.randn(7, generator=g, dtype=F64), torch.randn(6, generator=g, dtype=F64)
    assert torch.allclose(at.transposed(u), j.T @ u, rtol=1e-12)
    assert torch.allclose(at.product(v), j @ v, rtol=1e-12)
    assert torch.allclose(at.product(2 * v), 2 * (j @ v), rtol=1e-12), "the graph must serve more than once"

    def moved(step: float) -> dict[str, Tensor]:
        return {"x": point["x"][0] + step * v[:2], "y": point["y"][0] + step * v[2:].view(2, 2)}

    slope = (bowl_prior(moved(1e-5)) - bowl_prior(moved(-1e-5))) / 2e-5
    assert float(at.prior_slope() @ v) == pytest.approx(float(slope), rel=1e-7)
    bend = (bowl_prior(moved(1e-4)) - 2 * bowl_prior(moved(0.0)) + bowl_prior(moved(-1e-4))) / 1e-8
    assert float(at.prior_curvature(v) @ v) == pytest.approx(float(bend), rel=1e-5)


def test_the_step_is_the_dense_gauss_newton_step() -> None:
    point, damping = two(), 0.01
    at, j = problem(curved, bowl_prior, start=point).linearise(point), dense(curved, point)
    slope = 2 * at.transposed(at.residual) + 0.5 * at.prior_slope()
    free = torch.tensor([True, True, False, True, True, True])
    step, pushed = _Model(at, slope * free, free, 0.5).step(damping, rounds=30, forcing=1e-14)
    bend = torch.stack([at.prior_curvature(e) for e in torch.eye(6, dtype=F64)])
    matrix = 2 * j.T @ j + 0.5 * bend + damping * torch.eye(6, dtype=F64)
    expected = torch.zeros(6, dtype=F64)
    expected[free] = torch.linalg.solve(matrix[free][:, free], -slope[free])
    assert torch.allclose(step, expected, rtol=1e-9, atol=1e-12)
    assert torch.allclose(pushed, j @ step, rtol=1e-9, atol=1e-12)


def test_without_damping_one_step_solves_a_linear_problem() -> None:
    a = torch.randn(6, 4, generator=torch.Generator().manual_seed(2), dtype=F64)
    b = torch.arange(6, dtype=F64)
    found = LevenbergMarquardt(steps=2, damping=1e-13, forcing=1e-13).minimise(problem(lambda v: a @ v["x"] - b))
    assert torch.allclose(found.variables["x"][0], torch.linalg.lstsq(a, b).solution, rtol=1e-8)


def test_rosenbrock_is_solved_to_machine_precision() -> None:
    found = LevenbergMarquardt().minimise(problem())
    assert found.status is Status.CONVERGED
    assert torch.allclose(found.variables["x"], torch.ones(1, 4, dtype=F64), atol=1e-9)
    assert float(found.total) < 1e-18


@pytest.mark.parametrize("size", [1e-8, 1e-20, 1e-40])
def test_a_small_objective_is_minimised_as_far_as_a_large_one(size: float) -> None:
    found = LevenbergMarquardt().minimise(problem(lambda v: size * rosenbrock(v)))
    assert torch.allclose(found.variables["x"], torch.ones(1, 4, dtype=F64), atol=1e-6)


def test_rosenbrock_in_a_box_ends_at_its_corner() -> None:
    """With x ≤ ½ the minimum is at x = ½, y = ¼ (by hand: y = x², and 1 − x falls)."""
    low, high = torch.tensor([-2.0, -2, -2, -2], dtype=F64), torch.tensor([0.5, 0.5, 2, 2], dtype=F64)
    p = problem(bounds={"x": (low, high)})
    seen: list[Tensor] = []
    linearise = p.linearise
    p.linearise = lambda point: (seen.append(point["x"][0]), linearise(point))[1]  # type: ignore[method-assign]
    found = LevenbergMarquardt().minimise(p)
    assert torch.allclose(found.variables["x"][0], torch.tensor([0.5, 0.5, 0.25, 0.25], dtype=F64), atol=1e-7)
    assert all(bool(((x >= low) & (x <= high)).all()) for x in seen)


def test_a_prior_is_minimised_with_the_data_term() -> None:
    found = LevenbergMarquardt().minimise(problem(curved, bowl_prior, start=two()))
    x = {k: v[0].clone().requires_grad_() for k, v in found.variables.items()}
    total = curved(x).square().sum() + bowl_prior(x)
    assert float(found.total) == pytest.approx(float(total.detach()), rel=1e-12)
    for slope in torch.autograd.grad(total, list(x.values())):
        assert float(slope.abs().max()) < 1e-5


def test_a_prior_that_is_not_convex_does_no_harm() -> None:
    def wavy(v: dict[str, Tensor]) -> Tensor:
        return 5 * (3 * v["x"]).cos().sum()

    p = problem(prior=wavy)
    found = LevenbergMarquardt(steps=60).minimise(p)
    assert float(found.total) < float(p.loss({"x": p.start["x"][0]})[0])
    assert bool(torch.isfinite(found.total).all())


def test_every_product_is_counted() -> None:
    meter = Meter(Budget())
    p = problem(curved, meter=meter, start=two(), cost=3)
    at = p.linearise(two())
    assert meter.spent == 3
    at.transposed(at.residual)
    assert meter.spent == 6
    at.product(torch.ones(6, dtype=F64))
    assert meter.spent == 12, "the shared graph and the product"
    at.product(torch.ones(6, dtype=F64))
    assert meter.spent == 15
    at.prior_slope()
    at.prior_curvature(torch.ones(6, dtype=F64))
    assert meter.spent == 15


def test_a_step_of_k_rounds_takes_2k_and_3() -> None:
    meter = Meter(Budget())
    LevenbergMarquardt(steps=3, rounds=2, forcing=1e-12).minimise(problem(curved, meter=meter, start=two()))
    first = 1  # the start
    measuring = 2  # the curvature along the first gradient
    assert meter.spent == first + measuring + 2 * (2 * 2 + 3)


@pytest.mark.parametrize("cost", [1, 3])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_a_budget_is_never_exceeded_and_is_used(cost: int, limit: int) -> None:
    meter = Meter(Budget(gradient_evaluations=limit))
    found = LevenbergMarquardt().minimise(problem(meter=meter, cost=cost))
    assert limit - cost < meter.spent <= limit
    assert found.status is (Status.OUT_OF_BUDGET if limit >= cost else found.status)
    assert bool(found.variables) == (limit >= cost)


def test_time_limit_callback_and_not_a_number_are_statuses() -> None:
    def slow(v: dict[str, Tensor]) -> Tensor:
        time.sleep(0.02)
        return rosenbrock(v)

    found = LevenbergMarquardt().minimise(problem(slow, meter=Meter(Budget(seconds=0.1))))
    assert found.status is Status.TIME_LIMIT
    assert bool(torch.isfinite(found.total).all())
    objectives: list[float] = []

    def stop(step) -> bool:
        objectives.append(step.objective)
        return len(objectives) == 3

    found = LevenbergMarquardt().minimise(problem(meter=Meter(Budget(), stop)))
    assert found.status is Status.STOPPED
    assert float(found.data) == min(objectives)
    assert LevenbergMarquardt().minimise(problem(lambda v: v["x"] * torch.nan)).status is Status.NON_FINITE


def test_a_cliff_shortens_the_step() -> None:
    def cliff(v: dict[str, Tensor]) -> Tensor:
        return torch.where(v["x"].max() > 1.05, torch.nan, rosenbrock(v))

    found = LevenbergMarquardt(damping=1e-8).minimise(problem(cliff))
    assert float(found.total) < 1e-3


def test_a_loss_that_is_no_sum_of_squares_is_refused() -> None:
    p = problem()
    p.squares = None
    with pytest.raises(InputError, match="sum of squares"):
        LevenbergMarquardt().minimise(p)
    for field, zero in (("steps", 0), ("rounds", 0), ("forcing", 0.0), ("damping", 0.0)):
        with pytest.raises(InputError, match=field):
            LevenbergMarquardt(**{field: zero})


@pytest.mark.parametrize("objective", [SquaredL2(), Cosine()], ids=repr)
def test_residuals_square_to_their_objective(objective) -> None:
    g = torch.Generator().manual_seed(0)
    ours, theirs = (
        {"w": torch.randn(3, 4, generator=g, dtype=F64), "b": torch.randn(3, generator=g, dtype=F64)} for _ in "ab"
    )
    assert has_residual(objective)
    found = residual(objective, ours, theirs).square().sum()
    assert float(found) == pytest.approx(float(objective(ours, theirs, AttackerView())), rel=1e-12)
    assert float(residual(objective, ours, ours).abs().max()) == 0


class Absolute(Objective):
    """An objective of someone's own that has no residual."""

    scale_free = False

    def __call__(self, simulated, observed, view) -> Tensor:
        return sum((simulated[k] - observed[k]).abs().sum() for k in observed)


def observed() -> Observation:
    t, b = task("smooth"), batch(1)
    return Observation(
        t, client_update(t, FedSGD(), b, Draws(0)), Knowledge(labels=b.labels, example_count=1, local_training=FedSGD())
    )


@pytest.mark.parametrize("objective", [SquaredL2(), Cosine()], ids=repr)
@pytest.mark.parametrize("prior", [NoPrior(), TotalVariation(1e-9, smoothing=1e-6)], ids=repr)
def test_recovers_an_image_through_the_engine(objective, prior) -> None:
    attack = Matching(
        objective=objective, prior=prior, canvas=Pixels(first=Uniform()), minimiser=LevenbergMarquardt(), restarts=2
    )
    found = attack.reconstruct(observed(), torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=600))
    assert found.inputs is not None
    assert found.cost.gradient_evaluations <= 600
    assert float(PSNR()(found.inputs, batch(1).inputs)) > 40


def test_an_objective_without_residual_is_not_applicable() -> None:
    found = Matching(objective=Absolute(), minimiser=LevenbergMarquardt()).reconstruct(observed(), torch.Generator())
    assert found.status is Status.NOT_APPLICABLE
    assert "sum of squares" in found.message


def test_running_out_inside_a_product_is_over() -> None:
    at = problem(meter=Meter(Budget(gradient_evaluations=1))).linearise(problem().start)
    assert isinstance(at, Linearisation)
    with pytest.raises(Over):
        at.transposed(at.residual)
