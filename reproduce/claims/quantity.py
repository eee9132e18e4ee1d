"""The kept rows that a claim reads: those of its own list, of one start, and of a commit."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from typing import Any

from reproduce.claims.frozen import Claim, Rows, digest
from reproduce.rows import summarised
from reproduce.runs import listed_runs


@cache
def _records(paper: str, item: str, start: int) -> tuple[dict[str, Any], ...]:
    """Rows of the newest run first; only those that carry the digest of today's list and a clean commit."""
    rows = [row for run in listed_runs(paper, item, start) for row in run["rows"]]
    return tuple(row for row in rows if judges(row, paper))


def listed_rows(paper: str, item: str, start: int = 0) -> list[dict[str, Any]]:
    """Rows of an item that may judge claims, with the summary of their values."""
    return [summarised(row) for row in _records(paper, item, start)]


def judges(row: dict[str, Any], paper: str) -> bool:
    """Whether a row may judge a claim: it was made under the paper's list as it stands, by a commit that git knows."""
    told = row.get("environment", {})
    made = str(told.get("commit", ""))
    return told.get("list") == digest(paper) and bool(made) and not made.endswith("+")


def forget() -> None:
    """Reads the results anew the next time."""
    _records.cache_clear()


@dataclass(frozen=True)
class Quantity:
    """The row that a claim names, in one start."""

    paper: str
    rows: Rows
    metric: str
    start: int

    @classmethod
    def of(cls, paper: str, rows: Rows, claim: Claim, start: int) -> Quantity:
        """With the claim's metric where the row names none."""
        return cls(paper, rows, rows.metric or claim.metric, start)

    @property
    def record(self) -> dict[str, Any] | None:
        """As kept; `None` where there is none."""
        wanted = (self.rows.setting, self.rows.attack, self.metric)
        found = _records(self.paper, self.rows.item, self.start)
        return next((r for r in found if (r["setting"], r["attack"], r["metric"]) == wanted), None)

    def units(self, claim: Claim) -> list[float]:
        """What an interval is over: means by image, by search, or by seed; nothing where there is no row."""
        if (record := self.record) is None:
            return []
        table = record["per_image"]
        if claim.unit == "seed":
            return [statistics.fmean(column) for column in zip(*table, strict=True)]
        means = [statistics.fmean(values) for values in table]
        size = claim.group if claim.unit == "search" else 1
        return [statistics.fmean(means[at : at + size]) for at in range(0, len(means), size)]

    @property
    def commit(self) -> str:
        """That made the row."""
        return "" if self.record is None else str(self.record["environment"]["commit"])
