"""The papers' own numbers, read from `published`."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Cell:
    """One published number. `claimed` is `None` where the paper leaves the cell empty."""

    setting: str
    attack: str
    metric: str
    claimed: float | None
    spread: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What a measured row must carry to stand beside it."""
        return self.setting, self.attack, self.metric

    @property
    def row(self) -> str:
        """As the published numbers name it."""
        return f"{self.setting} | {self.attack}"

    @property
    def text(self) -> str:
        """As printed: ``24.14 ± 0.28``."""
        if self.claimed is None:
            return "–"
        return f"{self.claimed:g}" + ("" if self.spread is None else f" ± {self.spread:g}")


def title(paper: str, name: str) -> str:
    """Of a table or figure."""
    return str(_tables(paper)[name]["title"])


def cells(paper: str, name: str) -> list[Cell]:
    """All published numbers of a table or figure, baselines included."""
    table = _tables(paper)[name]
    found = []
    for row, values in table["rows"].items():
        setting, attack = (part.strip() for part in row.split("|"))
        spreads = table.get("spread", {}).get(row, [math.nan] * len(values))
        for metric, value, spread in zip(table["metrics"], values, spreads, strict=True):
            found.append(Cell(setting, attack, metric, _known(value), _known(spread)))
    return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@cache
def _tables(paper: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((PUBLISHED / f"{paper}.toml").read_text(encoding="utf-8"))
