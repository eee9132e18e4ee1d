"""Published numbers as the items have them, against the record of the papers' numbers."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.tables import Cell  # noqa: E402

from reproduce import command  # noqa: E402

RECORD = Path(os.environ.get("LEAKGAUGE_SHARED", ROOT.parent / "shared")) / "specs" / "published.md"
NUMBER = re.compile(r"(?<![\w.])[−-]?\d*\.?\d+(?:e-\d+)?|–|\binf\b")


def numbers(text: str) -> list[float | None]:
    """In the text's order; `None` for an empty cell."""
    plain = re.sub(r"(\d) (\d\d\d)", r"\1\2", text.replace("−", "-"))
    return [None if word == "–" else float(word) for word in NUMBER.findall(plain)]


def chained(values: list[float | None], record: list[float | None]) -> bool:
    """Whether the values stand one behind the other."""
    return any(record[i : i + len(values)] == values for i in range(len(record) - len(values) + 1))


def spelled(cells: list[Cell]) -> list[list[float | None]]:
    """The ways in which the record writes a row: means alone, or each with its spread where it has one."""
    mean = [cell.claimed for cell in cells]
    both = [v for cell in cells for v in ([cell.claimed] if cell.spread is None else [cell.claimed, cell.spread])]
    return [mean, both]


OTHER_UNIT = ("qian-hansen/figure5b", "mkor/time")
"""The record gives these another unit, which the title states."""


@pytest.mark.parametrize("paper", command.PAPERS)
def test_published_numbers_are_those_of_the_record(paper: str) -> None:
    if not RECORD.is_file():
        pytest.skip(f"{RECORD} is not here")
    record = numbers(RECORD.read_text(encoding="utf-8"))
    for name, item in command.items().items():
        if item.paper != paper or name in OTHER_UNIT:
            continue
        for row in dict.fromkeys(cell.row for cell in item.cells):
            cells = [cell for cell in item.cells if cell.row == row]
            known = [cell for cell in cells if cell.claimed is not None and not math.isinf(cell.claimed)]
            apart = [chained([cell.claimed], record) for cell in known]
            told = any(chained(way, record) for way in spelled(cells)) or (len(cells) <= 2 and all(apart))
            assert told, f"{name}, {row}: {[cell.text for cell in cells]}"
