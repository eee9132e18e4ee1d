"""Knobs that may change time and memory, never the result."""

from __future__ import annotations

import pytest
import torch

from leakgauge.compute import Budget, Compute
from leakgauge.errors import InputError


def test_apply_sets_the_threads_it_says() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1):
            Compute(threads=threads).apply()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_one_thread_is_the_default() -> None:
    assert Compute().threads == 1


def test_like_has_the_precision_that_a_part_asks_for() -> None:
    assert Compute().like().dtype == torch.float32
    assert Compute().like(torch.float64).dtype == torch.float64


@pytest.mark.parametrize(
    ("limits", "field"),
    [({"gradient_evaluations": 0}, "budget.gradient_evaluations"), ({"seconds": -1.0}, "budget.seconds")],
)
def test_a_budget_must_be_positive(limits: dict[str, float], field: str) -> None:
    with pytest.raises(InputError) as error:
        Budget(**limits)  # type: ignore[arg-type]
    assert error.value.field == field


@pytest.mark.parametrize(
    ("setting", "field"), [({"device": "tpu9"}, "device"), ({"threads": 0}, "threads"), ({"chunk": 0}, "chunk")]
)
def test_settings_that_cannot_work_name_their_field(setting: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as error:
        Compute(**setting)  # type: ignore[arg-type]
    assert error.value.field == field
