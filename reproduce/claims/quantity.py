"""Numbers that claims compare: of a kept row, and of a paper."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from typing import Any

from reproduce.rows import latest
from reproduce.runs import latest_run
from reproduce.tables import cells


@cache
def _records(item: str) -> tuple[dict[str, Any], ...]:
    """The newest kept rows of an item, or of one of our own rows, ``main-job/…``."""
    paper, _, name = item.partition("/")
    if paper == "main-job":
        record = latest(paper, name)
        return () if record is None else (record,)
    return tuple(latest_run(paper, name))


def forget() -> None:
    """Reads the results anew the next time."""
    _records.cache_clear()


@dataclass(frozen=True)
class Quantity:
    """One kept row. Of our own rows (``main-job/…``) there is one, which needs no other name."""

    item: str
    setting: str = ""
    attack: str = ""
    metric: str = ""

    @property
    def record(self) -> dict[str, Any] | None:
        """As kept; `None` where nothing is."""
        wanted = (self.setting, self.attack, self.metric)
        alone = self.item.startswith("main-job/")
        found = (r for r in _records(self.item) if alone or (r["setting"], r["attack"], r["metric"]) == wanted)
        return next(found, None)

    @property
    def units(self) -> list[float]:
        """What an interval is over: the mean of each image, or of each seed where there is one image."""
        record = self.record
        if record is None:
            return []
        table = record["per_image"]
        return list(table[0]) if len(table) == 1 else [statistics.fmean(values) for values in table]

    @property
    def images(self) -> int:
        """How many images, or batches where a batch is the unit."""
        return 0 if self.record is None else len(self.record["per_image"])

    @property
    def evaluations(self) -> int:
        """Gradient evaluations of one client."""
        return 0 if self.record is None else int(self.record["gradient_evaluations"])

    @property
    def commit(self) -> str:
        """That made the row; older rows do not say."""
        return "" if self.record is None else str(self.record["environment"].get("commit", ""))


@dataclass(frozen=True)
class Published:
    """One cell of a paper, by the item and the names that it has in `published`."""

    item: str
    row: str
    metric: str

    @property
    def value(self) -> float:
        """As the paper has it.

        Raises:
            LookupError: the published numbers have no such cell, or an empty one.
        """
        for cell in cells(*self.item.split("/")):
            if (cell.row, cell.metric) == (self.row, self.metric) and cell.claimed is not None:
                return cell.claimed
        raise LookupError(f"{self.item} has no published {self.row}, {self.metric}")
