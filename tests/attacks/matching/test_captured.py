"""A captured step gives the numbers of the step, without what nothing rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attacks.test_contracts import CASES, Case, observe
from cases import batch
from leakgauge.attacks.matching import Adam, Matching
from leakgauge.attacks.matching.captured import captured
from leakgauge.compute import Budget, Compute
from leakgauge.task import Mode
from leakgauge.tensors import Tensors

SEARCHES = [
    c for c in CASES if c.registered in ("matching", "inverting-gradients", "dlg", "gias", "ci-net", "auto", "rog")
]


@pytest.mark.parametrize("case", SEARCHES, ids=lambda c: c.name)
def test_a_captured_search_is_the_search(case: Case) -> None:
    """To the last bit, through falls of the prior and restarts."""
    seen, budget = observe(case, batch(case.n)), Budget(gradient_evaluations=40)

    def run(capture: int | None) -> object:
        found = case.attack.reconstruct(
            seen, torch.Generator().manual_seed(0), budget=budget, compute=Compute(capture=capture)
        )
        return None if found.inputs is None else found.inputs.tolist(), found.objective, found.trace

    assert run(3) == run(None)


def step(point: Tensors, factor: Tensor) -> tuple[Tensor, Tensor, Tensors]:
    x = point["x"]
    return (x * factor).sum(1), x.sum(1), {"x": 2 * x}


X, ONE = {"x": torch.arange(6.0).view(2, 3)}, torch.tensor(1.0)


def test_it_answers_elsewhere_than_where_it_was_recorded() -> None:
    record = captured(step, X, ONE)
    assert record is not None
    there, half = {"x": torch.ones(2, 3)}, torch.tensor(0.5)
    total, data, slopes = record(there, half)
    assert (total.tolist(), data.tolist(), slopes["x"].tolist()) == ([1.5, 1.5], [3.0, 3.0], [[2.0] * 3] * 2)


def test_what_draws_or_looks_at_values_is_not_recorded() -> None:
    def draws(point: Tensors, factor: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        return step({"x": point["x"] + 0 * torch.rand(2, 3, generator=torch.Generator().manual_seed(0))}, factor)

    def looks(point: Tensors, factor: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        return step(point if float(point["x"].sum()) > 0 else {"x": -point["x"]}, factor)

    assert captured(draws, X, ONE) is None
    assert captured(looks, X, ONE) is None


def test_constants_are_computed_once_but_for_memory_that_is_written_to() -> None:
    constant = torch.ones(2, 3)

    def sums(point: Tensors, factor: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        gathered = torch.zeros_like(constant)
        gathered += point["x"]  # a record that kept this zero would add up from step to step
        return (gathered * constant.square().sum() * factor).sum(1), gathered.sum(1), {"x": gathered}

    record = captured(sums, X, ONE)
    assert record is not None
    for _ in range(2):
        assert torch.equal(record(X, ONE)[0], sums(X, ONE)[0])


def test_a_search_with_dropout_is_not_recorded() -> None:
    """Its seed is set in each call."""
    case = next(c for c in CASES if c.model == "dropped")
    searching = replace(case, attack=Matching(minimiser=Adam(steps=12)), n=2)
    seen = observe(searching, batch(2), mode=Mode.TRAIN)
    one, two = (
        searching.attack.reconstruct(seen, torch.Generator().manual_seed(0), compute=Compute(capture=c))
        for c in (2, None)
    )
    assert one.trace == two.trace
    assert len(one.trace) >= 12, "a point a step"
    assert [spent for spent, _ in one.trace] == sorted(spent for spent, _ in one.trace)
