"""What a rule adds is counted by model, not by rule."""

from __future__ import annotations

from reproduce.inspection.ablation import Added, ablation, fired, table

from leakgauge.inspection.rule import Limits


def test_what_nothing_else_catches_is_told_from_what_a_rule_catches() -> None:
    limits = Limits(limits={"a": 1.0, "b": 2.0}, made_by="", models=0)
    seen = [("x", 1.0, 2.0), ("x", 0.9, 3.0), ("x", 5.0, 0.0), ("x", 0.0, 0.0), ("honest", 1.0, 0.0)]
    found = fired([{"asked": k, "statistics": {"a": a, "b": b, "gone": 9.0}} for k, a, b in seen], limits)
    rows = ablation(found, ["a", "b"])
    assert rows == [Added("a", {"x": 2}, {"x": 1}, 1), Added("b", {"x": 2}, {"x": 1}, 0)]
    assert "| `a` | x 2/4 | x 1/4 | 1 |" in table(rows, found)
