"""What people bring goes every way in, and the page on it is made from kept rows, for each case that is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import brought  # noqa: E402


def test_every_case_has_a_row_and_none_raised() -> None:
    rows = brought.kept()
    assert {r["case"] for r in rows if r["way"] == "attack"} == {*brought.CASES, *brought.HELD_OUT}
    assert len(brought.CASES) >= 60
    assert len(brought.HELD_OUT) >= 12
    assert not [(r["case"], r["way"]) for r in rows if r["status"] == "RAISED"]
    page = brought.page(rows)
    assert all(r["case"] in page for r in rows)


@pytest.mark.parametrize(
    "way",
    ["plan", *(pytest.param(way, marks=pytest.mark.slow) for way in brought.WAYS if way not in ("attack", "plan"))],
)
def test_the_same_is_read_whichever_way_a_case_goes(way: str) -> None:
    name = "table with categories, one logit"
    rows = [brought.run(name, brought.CASES[name], way=w, seed=0, evaluations=8) for w in ("attack", way)]
    assert [r["status"] for r in rows] == ["EXACT", "EXACT"]
    assert brought.exact(rows[0]) == {"numbers": 1, "kinds": 1, "y": 1, "set of tokens": 0}
    assert brought.beside(rows[0], rows[1:]) == f"{way}: same"
