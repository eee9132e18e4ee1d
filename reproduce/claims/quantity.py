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
    """One kept row, or rows of one attack on several sets of images. Of our own rows (``main-job/…``) there is one,
    which needs no other name.

    Attributes:
        further: settings with other images of the same kind, which follow those of `setting`. All are kept, or
            nothing counts as kept: a pair of quantities would otherwise compare different images.
    """

    item: str
    setting: str = ""
    attack: str = ""
    metric: str = ""
    further: tuple[str, ...] = ()

    def _record(self, setting: str) -> dict[str, Any] | None:
        wanted = (setting, self.attack, self.metric)
        alone = self.item.startswith("main-job/")
        found = (r for r in _records(self.item) if alone or (r["setting"], r["attack"], r["metric"]) == wanted)
        return next(found, None)

    @property
    def records(self) -> list[dict[str, Any]]:
        """As kept; empty where anything is missing."""
        found = [record for s in (self.setting, *self.further) if (record := self._record(s)) is not None]
        return found if len(found) == 1 + len(self.further) else []

    @property
    def units(self) -> list[float]:
        """What an interval is over: the mean of each image, or of each seed where there is one image."""
        table = [values for record in self.records for values in record["per_image"]]
        return list(table[0]) if len(table) == 1 else [statistics.fmean(values) for values in table]

    @property
    def images(self) -> int:
        """How many images, or batches where a batch is the unit."""
        return sum(len(record["per_image"]) for record in self.records)

    @property
    def evaluations(self) -> int:
        """Gradient evaluations of one client, the fewest where rows differ."""
        return min((int(record["gradient_evaluations"]) for record in self.records), default=0)

    @property
    def commits(self) -> set[str]:
        """That made the rows; older rows do not say."""
        return {str(record["environment"].get("commit", "")) for record in self.records} - {""}


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
