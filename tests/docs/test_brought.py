"""The page on what people bring is made from kept rows, one for each case that is named."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import brought  # noqa: E402


def test_every_case_has_a_row_and_none_raised() -> None:
    rows = brought.kept()
    assert {r["case"] for r in rows} == {*brought.CASES, *brought.HELD_OUT}
    assert len(brought.CASES) >= 60
    assert len(brought.HELD_OUT) >= 12
    assert not [r["case"] for r in rows if r["status"] == "RAISED"]
    assert all(r["case"] in brought.page(rows) for r in rows)
