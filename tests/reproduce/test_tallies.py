"""Qian & Hansen's count on its own networks and on the worked case of its appendix."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.qian_hansen.tallies import (  # noqa: E402
    OneHidden,
    needed_rows,
    paper_applies,
    paper_rows,
    paper_tally,
    rank_of,
)

from leakgauge.errors import InputError  # noqa: E402


def conv(size: int, channels: int = 3, filters: int = 1, kernel: int = 5, padding: int = 2) -> OneHidden:
    return OneHidden.convolution(
        channels=channels, size=size, filters=filters, classes=10, kernel=kernel, padding=padding
    )


def test_the_worked_case_of_the_appendix_as_the_paper_counts_it() -> None:
    """B = 2, n₁ = 3, n₂ = 2."""
    d = 7
    net = OneHidden.linear(inputs=d, units=3, classes=2)
    tally = paper_tally(net, 2)
    assert (tally.equations, tally.unknowns) == (11 + 3 * d, 10 + 2 * d)
    assert paper_rows(net, 2) == pytest.approx((2 * (d + 2) - 2) / (d + 1))
    for count in (paper_tally, paper_rows, paper_applies):
        with pytest.raises(InputError, match="batch"):
            count(net, 0)


def test_the_papers_formulas_on_its_own_networks() -> None:
    assert paper_rows(OneHidden.linear(inputs=1024, units=4, classes=10), 4) == pytest.approx(4.002, abs=5e-4)
    assert paper_rows(OneHidden.linear(inputs=1024, units=8, classes=10), 8) == pytest.approx(8.045, abs=5e-4)
    assert math.isinf(paper_rows(OneHidden.linear(inputs=5, units=8, classes=3), 9))
    assert [paper_rows(conv(32), b) for b in (1, 4)] == [12, 48]


def test_the_papers_count_says_where_it_does_not_apply() -> None:
    photo = {"channels": 3, "size": 32, "classes": 10}
    wide = OneHidden.convolution(filters=12, **photo)
    assert [b for b in (1, 2, 9, 10, 12) if paper_applies(wide, b)] == [2, 9]
    thin = OneHidden.convolution(filters=1, channels=1, size=4, classes=4)  # four activations
    assert [b for b in (1, 2, 3) if paper_applies(thin, b)] == [2]
    line = OneHidden.linear(inputs=5, units=8, classes=3)
    assert [b for b in (1, 8, 9) if paper_applies(line, b)] == [1, 8]


def test_the_corrected_count_does_not_grow_with_the_batch() -> None:
    assert [needed_rows(conv(32), b) for b in (1, 4)] == [10, 12]
    assert [needed_rows(conv(16), b) for b in (1, 2)] == [6, 8]
    assert needed_rows(OneHidden.linear(inputs=1024, units=1, classes=10), 8) == 8


def test_equations_that_repeat_others_raise_the_count() -> None:
    """Kernel 3, 16 pixels: B·C·d²/(B·d'² + C·k² + 1) says 9, but 9 filters leave directions open."""
    small = conv(16, kernel=3, padding=1)
    assert needed_rows(small, 1) == 10


def test_bad_numbers_name_their_field() -> None:
    for make, field in (
        (lambda: OneHidden.linear(inputs=0, units=1, classes=2), "inputs"),
        (lambda: OneHidden.linear(inputs=1, units=1, classes=1), "classes"),
        (lambda: conv(2, kernel=9), "kernel"),
        (lambda: rank_of(conv(8), 0), "batch"),
    ):
        with pytest.raises(InputError) as error:
            make()
        assert error.value.field == field
