"""What a layer's gradient is solved for with: however ill its equations, a bounded number of evaluations, once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hunt.scenarios import Scenario
from hunt.zoo import Net
from leakgauge.defenses import noise
from leakgauge.observation import Observation
from leakgauge.view.layer import Effective, Linear, _least_squares
from leakgauge.view.normal import look_at

SHAPE = (8, 10)


def _matrix(equations: int, condition: float, rank: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(equations, rank, generator=draw, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(80, rank, generator=draw, dtype=torch.float64))
    return left * torch.logspace(0, -torch.tensor(condition).log10().item(), rank) @ right.T


@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize(("equations", "rank"), [(80, 80), (120, 80), (120, 50), (60, 60)])
def test_the_nearest_is_found_by_few_evaluations_and_the_next_by_none(
    equations: int, rank: int, condition: float
) -> None:
    matrix, asked = _matrix(equations, condition, rank).double(), [0]

    def linear(v: Tensor) -> Tensor:
        asked[0] += 1
        return matrix @ v

    written: list[Linear | None] = []
    for seed in (1, 2):
        wanted = matrix @ torch.randn(80, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        told = torch.linalg.pinv(matrix, rtol=1e-12) @ wanted
        found = _least_squares(linear, wanted, SHAPE, written).flatten()
        assert torch.allclose(found, told, rtol=0, atol=1e-13 * condition * float(told.norm()) + 1e-11)
        assert asked[0] <= 130
        if written:
            asked[0] = 129


@pytest.mark.parametrize("units", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_a_look_at_reflectors_behind_noise_costs_as_much_as_few_gradients(
    monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    """Thousands of evaluations before, for each relation of a hunt."""
    asked, made = [0], Effective._made

    def counted(self: Effective, entries: Tensor) -> Tensor:
        asked[0] += 1
        return made(self, entries)

    monkeypatch.setattr(Effective, "_made", counted)
    net = Net(first="reflectors and a triangle", units=units)
    one = Scenario(net, defense=noise(relative=1e-3), examples=4, seed=1)
    _, task, update, knows = one.observed()
    seen = Observation(task, update, knows)
    assert seen.view is not seen
    assert asked[0] < 200


def test_what_does_not_end_is_not_solved_again_from_every_tensor_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A triangle and reflectors hold half of their entries; a scenario of a hunt took a quarter of an hour."""
    solved = list[int]()

    def never(_: Linear, wanted: Tensor, shape: tuple[int, int], __: object) -> Tensor:
        solved.append(wanted.numel())
        return torch.zeros(shape, dtype=torch.float64)

    monkeypatch.setattr("leakgauge.view.layer._least_squares", never)
    net = Net("convolution", first="reflectors and a triangle", rows="a picture at a time", units=12)
    task, *_ = Scenario(net, examples=2, seed=1).observed()[1:]
    assert look_at(task).form is None
    assert len(solved) <= 1
