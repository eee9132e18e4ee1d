"""Runs of an item: one file each, written attack by attack, so that a long one goes on where it stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakgauge.files import write_whole
from reproduce import rows as rows_module
from reproduce.rows import Row, summarised


def _files(paper: str, item: str, *, quick: bool) -> list[Path]:
    return sorted(rows_module.RESULTS.glob(f"{paper}-{item}-{'quick-' if quick else ''}2*.json"))


def _mark(start: int) -> str:
    return f"listed{start}-"


def _listed(paper: str, item: str, start: int) -> list[Path]:
    return sorted(rows_module.RESULTS.glob(f"{paper}-{item}-{_mark(start)}2*.json"))


def listed_runs(paper: str, item: str, start: int) -> list[dict[str, Any]]:
    """Runs of an item under a list of claims, the newest first, ended or not."""
    return [_read(path) for path in reversed(_listed(paper, item, start))]


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _complete(run: dict[str, Any]) -> bool:
    return bool(run.get("complete", True))


@dataclass
class Run:
    """A run of an item. A complete one is never touched again.

    Attributes:
        records: the rows so far, as kept.
    """

    path: Path
    head: dict[str, Any]
    records: list[dict[str, Any]] = field(default_factory=list)
    circumstances: dict[str, object] = field(default_factory=dict)

    @classmethod
    def begin(cls, paper: str, item: str, *, quick: bool) -> Run:
        """The newest run of the item that was interrupted, or a new one."""
        return cls._begun(_files(paper, item, quick=quick), paper, item, "quick-" if quick else "", {"quick": quick})

    @classmethod
    def listed(cls, paper: str, item: str, start: int, circumstances: dict[str, object]) -> Run:
        """The same for a run under a list of claims. An interrupted one goes on only under the same circumstances: the
        list's digest, the commit, the start and the device."""
        head = {"quick": False, "circumstances": circumstances}
        found = [path for path in _listed(paper, item, start) if _read(path)["circumstances"] == circumstances]
        run = cls._begun(found, paper, item, _mark(start), head)
        run.circumstances = {key: value for key, value in circumstances.items() if key != "commit"}
        return run

    @classmethod
    def _begun(cls, files: Sequence[Path], paper: str, item: str, mark: str, head: dict[str, Any]) -> Run:
        rows_module.RESULTS.mkdir(exist_ok=True)
        for path in reversed(files):
            if not _complete(run := _read(path)):
                return cls(path, {k: v for k, v in run.items() if k not in ("rows", "complete")}, run["rows"])
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = rows_module.RESULTS / f"{paper}-{item}-{mark}{stamp}.json"
        path.touch(exist_ok=False)
        run = cls(path, {"paper": paper, "item": item, **head, "created_at": stamp})
        run._write(complete=False)
        return run

    def of(self, setting: str, attack: str) -> list[Row]:
        """The rows of an attack on a setting that are kept, one a metric."""
        return [Row.of(r) for r in self.records if (r["setting"], r["attack"]) == (setting, attack)]

    def add(self, rows: Sequence[Row]) -> None:
        """Takes rows; those that it has stay."""
        has = {(r["setting"], r["attack"], r["metric"]) for r in self.records}
        self.records += [
            row.record(self.circumstances) for row in rows if (row.setting, row.attack, row.metric) not in has
        ]

    def keep(self, rows: Sequence[Row]) -> None:
        """Writes rows, all or none."""
        self.add(rows)
        self._write(complete=False)

    def finish(self) -> None:
        """Nothing is missing."""
        self._write(complete=True)

    def _write(self, *, complete: bool) -> None:
        document = self.head | {"complete": complete, "rows": self.records}
        write_whole(self.path, json.dumps(document, indent=1) + "\n")


def newest_run(paper: str, item: str, *, quick: bool) -> dict[str, Any] | None:
    """The newest run of an item, complete or not."""
    found = _files(paper, item, quick=quick)
    return _read(found[-1]) if found else None


def latest_run(paper: str, item: str) -> list[dict[str, Any]]:
    """Rows of the newest full run of an item that ended, else of the newest quick one, with what later full runs that
    were interrupted have in place of the same rows or below them."""
    quick, full = ([_read(path) for path in _files(paper, item, quick=quick)] for quick in (True, False))
    ended = [place for place, run in enumerate(full) if _complete(run)]
    first = (
        full[ended[-1]] if ended else next(reversed([run for run in quick if _complete(run)] or quick), {"rows": []})
    )
    later = full[ended[-1] + 1 :] if ended else full
    rows = {(r["setting"], r["attack"], r["metric"]): r for run in [first, *later] for r in run["rows"]}
    return [summarised(row) for row in rows.values()]
