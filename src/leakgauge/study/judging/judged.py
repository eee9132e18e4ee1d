"""What the gate says of a stored audit, unfinished ones included."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.study.document import summary
from leakgauge.study.store import Store


@dataclass(frozen=True)
class Judged:
    """The gate's decision on an audit.

    Attributes:
        audit: its name.
        passed: `None` where the plan has no gate and all trials have run.
        reasons: each a line a person can act on; empty if it passed.
        level: of the verdict.
    """

    audit: str
    passed: bool | None
    reasons: tuple[str, ...]
    level: str

    @staticmethod
    def of(store: Store) -> Judged:
        """An audit with trials left to run does not pass, whatever the others say."""
        report, left = summary(store), store.missing()
        gate = report["verdict"]["gate"]
        reasons = [*gate["reasons"], *([f"unfinished: {left} trials have not run"] if left else [])]
        passed = False if reasons else gate["passed"]
        return Judged(str(report["config"].get("name", "audit")), passed, tuple(reasons), report["verdict"]["level"])
