"""What ROG's kept runs must show: knowing a defence never hurts on its canvas either."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.rog.adapted import DEFENDED, decibels, gain  # noqa: E402
from reproduce.rog.runs import Named  # noqa: E402
from reproduce.rog.settings import COMPRESSED, PRECODE, SIGNS  # noqa: E402


@pytest.mark.parametrize("defense", DEFENDED, ids=lambda d: d.name)
def test_knowing_the_defence_is_never_worse_beyond_the_interval(defense: Named) -> None:
    assert decibels(defense)["ROG, adapted"].shape == (4, 3), "four pictures by three seeds"
    interval = gain(defense)
    assert interval.high is not None
    assert interval.high >= 0


@pytest.mark.parametrize("defense", [*COMPRESSED, SIGNS, PRECODE], ids=lambda d: d.name)
def test_knowing_what_was_rounded_left_out_or_sampled_is_worth_something(defense: Named) -> None:
    interval = gain(defense)
    assert interval.low is not None
    assert interval.low > 0
