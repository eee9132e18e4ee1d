"""Minimisers against torch's own and against problems whose answer is known."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from leakgauge.attacks.matching import LBFGS, Adam, AnnealedAdam, BoundedLBFGS, Minimiser
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.compute import Budget
from leakgauge.observation import Status

TARGET = torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=torch.float64)


def bowl(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([1.0, 5.0, 20.0, 3.0], dtype=torch.float64)
    value = (scale * (v["x"] - TARGET).square()).sum()
    return value, value


def rosenbrock(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    x, y = v["x"].reshape(-1)[:2], v["x"].reshape(-1)[2:]
    value = ((1 - x).square() + 10 * (y - x.square()).square()).sum()
    return value, value


def problem(
    loss=bowl, restarts: int = 1, bounds=None, meter: Meter | None = None, chunk: int | None = None, cost: int = 1
) -> Problem:
    start = torch.randn(restarts, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Problem(loss, {"x": start}, bounds or {}, meter or Meter(Budget()), cost, chunk)


ALL: list[Minimiser] = [
    Adam(steps=400, lr=0.05),
    Adam(steps=400, lr=0.05, signed=False),
    AnnealedAdam(steps=400),
    LBFGS(steps=60, lr=0.2),
    BoundedLBFGS(steps=60),
]


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_finds_the_bottom_of_a_bowl(minimiser: Minimiser) -> None:
    found = minimiser.minimise(problem())
    assert float(found.data) < 1e-3
    assert torch.allclose(found.variables["x"][0], TARGET, atol=0.05)
    assert found.status in (Status.CONVERGED, Status.OUT_OF_STEPS)


@pytest.mark.parametrize("minimiser", [LBFGS(steps=200, lr=0.5), BoundedLBFGS(steps=200)], ids=repr)
@pytest.mark.parametrize("size", [1e-6, 1e-10, 1e-14, 1e-30])
def test_a_small_objective_is_minimised_as_far_as_a_large_one(minimiser: Minimiser, size: float) -> None:
    """A wide network or a large batch makes updates of 1e-5 and squared distances of 1e-10."""

    def small(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        value = size * rosenbrock(v)[0]
        return value, value

    meter = Meter(Budget())
    found = minimiser.minimise(problem(small, meter=meter))
    assert meter.spent > 10
    assert float(found.total) / size < 1e-6


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_the_best_point_and_its_value_belong_together(minimiser: Minimiser) -> None:
    found = minimiser.minimise(problem(rosenbrock, 1))
    assert float(found.total) == pytest.approx(float(rosenbrock({"x": found.variables["x"][0]})[0]), rel=1e-12)


def test_lbfgs_is_torchs_without_line_search() -> None:
    for loss in (bowl, rosenbrock):
        for steps in (2, 5, 12, 30):
            ours = problem(loss)
            x = ours.start["x"][0].clone().requires_grad_()
            # history shorter than the run, so that forgetting is tested too
            theirs = torch.optim.LBFGS(
                [x], lr=0.05, max_iter=steps, max_eval=10**6, history_size=7, tolerance_grad=1e-7
            )

            def closure(x: Tensor = x, theirs: torch.optim.Optimizer = theirs, loss=loss) -> Tensor:
                theirs.zero_grad()
                value = loss({"x": x})[0]
                value.backward()
                return value

            theirs.step(closure)
            seen: list[Tensor] = []
            evaluate = ours.evaluate

            def spy(point, seen: list[Tensor] = seen, evaluate=evaluate):
                seen.append(point["x"][0].clone())
                return evaluate(point)

            ours.evaluate = spy  # type: ignore[method-assign]
            LBFGS(steps=steps + 1, lr=0.05, history=7).minimise(ours)
            assert torch.allclose(seen[steps], x.detach(), rtol=1e-7, atol=1e-9), (loss, steps)


def test_signed_adam_is_a_loop_over_torchs_adam() -> None:
    ours = Adam(steps=40, lr=0.1).minimise(problem())
    x = problem().start["x"][0].clone().requires_grad_()
    adam = torch.optim.Adam([x], lr=0.1)
    best = float("inf")
    for step in range(40):
        value = bowl({"x": x})[0]
        best = min(best, float(value.detach()))
        adam.zero_grad()
        value.backward()
        x.grad = x.grad.sign()
        adam.step()
        if step + 1 in (int(40 // 2.667), int(40 // 1.6), int(40 // 1.142)):
            adam.param_groups[0]["lr"] *= 0.1
    assert float(ours.total) == pytest.approx(best, rel=1e-9)


def test_milestones_are_the_papers() -> None:
    assert Adam(steps=4800).milestones(4800) == [1799, 2999, 4203]


@pytest.mark.parametrize("minimiser", [Adam(steps=200, lr=0.05), BoundedLBFGS(steps=60)], ids=repr)
def test_the_box_is_kept_and_its_corner_found(minimiser: Minimiser) -> None:
    low, high = torch.full((4,), -0.1, dtype=torch.float64), torch.full((4,), 0.5, dtype=torch.float64)
    found = minimiser.minimise(problem(bounds={"x": (low, high)}))
    x = found.variables["x"][0]
    assert bool(((x >= low) & (x <= high)).all())
    assert torch.allclose(x, TARGET.clamp(-0.1, 0.5), atol=0.05)


@pytest.mark.parametrize("minimiser", [m for m in ALL if m.batched], ids=repr)
@pytest.mark.parametrize("chunk", [None, 2])
def test_7_restarts_side_by_side_are_restarts_one_by_one(minimiser: Minimiser, chunk: int | None) -> None:
    together = minimiser.minimise(problem(rosenbrock, 5, chunk=chunk))
    for i in range(5):
        alone = minimiser.minimise(problem(rosenbrock, 5).one(i))
        assert torch.allclose(alone.variables["x"][0], together.variables["x"][i], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
@pytest.mark.parametrize("laid", ["start", "slope"])
def test_how_numbers_lie_in_memory_is_nothing_to_a_minimiser(minimiser: Minimiser, laid: str) -> None:
    """Networks that move channels to the end leave slopes there."""
    draws = torch.Generator().manual_seed(0)
    target, drawn = (torch.rand((1, 2, 3, 4, 4), generator=draws, dtype=torch.float64) for _ in "ab")

    def square(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        gap = v["x"] - target[0]
        value = (gap.permute(0, 2, 3, 1).flatten(1, 2) @ torch.eye(3, dtype=gap.dtype)).square().sum()
        return value, value

    start = drawn[0].to(memory_format=torch.channels_last)[None] if laid == "start" else drawn
    found = minimiser.minimise(Problem(square, {"x": start}, {}, Meter(Budget())))
    assert torch.allclose(found.variables["x"], target, atol=0.05)


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
@pytest.mark.parametrize("cost", [1, 3])
def test_a_budget_is_never_exceeded_and_is_used(minimiser: Minimiser, cost: int) -> None:
    meter = Meter(Budget(gradient_evaluations=20))
    found = minimiser.minimise(problem(rosenbrock, meter=meter, cost=cost))
    assert found.status is Status.OUT_OF_BUDGET
    assert 20 - cost < meter.spent <= 20


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_a_time_limit_ends_the_run_with_the_best_so_far(minimiser: Minimiser) -> None:
    def slow(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        time.sleep(0.02)
        return rosenbrock(v)

    found = minimiser.minimise(problem(slow, meter=Meter(Budget(seconds=0.1))))
    assert found.status is Status.TIME_LIMIT
    assert bool(torch.isfinite(found.total).all())


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_a_caller_can_stop_a_run_and_keeps_the_best_so_far(minimiser: Minimiser) -> None:
    steps = []

    def stop(step) -> bool:
        steps.append(step)
        return len(steps) == 3

    found = minimiser.minimise(problem(rosenbrock, meter=Meter(Budget(), stop)))
    assert found.status is Status.STOPPED
    assert len(steps) == 3
    assert float(found.data) == min(s.objective for s in steps)


@pytest.mark.parametrize("minimiser", ALL, ids=repr)
def test_not_a_number_is_a_status(minimiser: Minimiser) -> None:
    def broken(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        value = (v["x"] * float("nan")).sum()
        return value, value

    assert minimiser.minimise(problem(broken)).status is Status.NON_FINITE


def test_one_broken_restart_does_not_harm_the_others() -> None:
    def cliff(v: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        value = torch.where(v["x"][0] > 1e6, torch.nan, bowl(v)[0])
        return value, value

    p = problem(cliff, 3)
    p.start["x"][1, 0] = 1e7
    for minimiser in (m for m in ALL if m.batched):
        found = minimiser.minimise(p)
        assert torch.isfinite(found.total).tolist() == [True, False, True]
        assert float(found.total[0]) < 1e-2


def test_a_step_count_that_is_not_positive_is_refused() -> None:
    for make in (Adam, LBFGS, BoundedLBFGS):
        with pytest.raises(ValueError, match="steps"):
            make(steps=0)
