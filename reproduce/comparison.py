"""An item's published numbers beside the measured ones: as rows, and as lines for a terminal of any width."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from reproduce.item import Item

MARGIN = "    "
HEAD = ("metric", "published", "measured [95 %]")
THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}\b)")  # 4 800 stays on one line


def beside(item: Item, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Published cells with their measurements, then measurements that the paper has no cell for."""
    left = {(r["setting"], r["attack"], r["metric"]): r for r in records}
    rows, used = [], set()
    for cell in item.cells:
        key = next((key for key in item.keys(cell) if key in left), None)
        record = None if key is None else left[key]
        if key is not None and record is not None:
            used.add(key)
            if key != cell.key:
                record = record | {"doubt": "; ".join(filter(None, (f"here {key[0]}, {key[1]}", record["doubt"])))}
        rows.append(_row(cell.setting, cell.attack, cell.metric, cell.text, record))
    left = {key: record for key, record in left.items() if key not in used}
    for (setting, attack, metric), record in left.items():
        rows.append(_row(setting, attack, metric, record["claimed"] or "–", record))
    return rows


def _row(setting: str, attack: str, metric: str, claimed: str, record: dict[str, Any] | None) -> dict[str, Any]:
    names = {"setting": setting, "attack": attack, "metric": metric, "published": claimed}
    if record is None:
        return names | {"measured": None, "seeds": [], "cost": None, "doubt": "not measured"}
    cost = {"gradient_evaluations": record["gradient_evaluations"], "seconds": record["seconds"]}
    return names | {"measured": record["measured"], "seeds": record["seeds"], "cost": cost, "doubt": record["doubt"]}


def measured_text(measured: dict[str, Any] | None) -> str:
    """``24.2 [23.9, 24.5]``."""
    if measured is None:
        return "–"
    ends = "" if measured["low"] is None else f" [{measured['low']:.3g}, {measured['high']:.3g}]"
    return f"{measured['mean']:.4g}{ends}"


def lines(item: Item, records: list[dict[str, Any]], width: int) -> Iterator[str]:
    """What a terminal shows: a heading for each setting and each attack under it, then one line a metric.

    The columns of published and measured numbers keep their width; that of the metrics takes what is left, and wraps.
    """
    yield from wrapped(f"{item.paper}/{item.name}: {item.title}", width)
    yield from wrapped(item.state.value + (f": {item.note}" if item.note else ""), width)
    rows = beside(item, records)
    if not rows:
        return
    cells = [HEAD, *((r["metric"], r["published"], measured_text(r["measured"])) for r in rows)]
    longest = [max(len(text) for text in column) for column in zip(*cells, strict=True)]
    words = max(len(word) for metric, *_ in cells for word in metric.split())
    room = width - len(MARGIN) - longest[1] - longest[2] - 4
    columns = (max(min(longest[0], room), words), longest[1], longest[2])
    doubts: list[str] = []
    yield ""
    yield from _in_columns(HEAD, columns)
    setting = None
    for key, how, own in _blocks(rows):
        if key[0] != setting:
            setting = key[0]
            yield from ("", *wrapped(setting, width))
        yield from wrapped(f"  {key[1]}: {_spent(how, doubts)}", width)
        for row in own:
            yield from _in_columns((row["metric"], row["published"], measured_text(row["measured"])), columns)
    if doubts:
        yield ""
    for number, doubt in enumerate(doubts, 1):
        yield from wrapped(f"{number}  {doubt}", width, hanging="   ")


def wrapped(text: str, width: int, *, hanging: str = MARGIN) -> list[str]:
    """Lines of at most `width` columns, broken between words; all but the first are indented.

    Their indent is `hanging` after that of the first.
    """
    indent = text[: len(text) - len(text.lstrip())]
    found = textwrap.wrap(
        THOUSANDS.sub("\N{NO-BREAK SPACE}", text.lstrip()),
        width,
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_on_hyphens=False,
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in found] or [""]


def _blocks(
    rows: list[dict[str, Any]],
) -> Iterator[tuple[tuple[str, str], dict[str, Any] | None, list[dict[str, Any]]]]:
    """Rows of one setting and attack that were made alike: the first of them that was measured, and all.

    What was not measured stands with what was.
    """
    for key in dict.fromkeys((row["setting"], row["attack"]) for row in rows):
        own = [row for row in rows if (row["setting"], row["attack"]) == key]
        alike: list[list[dict[str, Any]]] = []
        for row in (r for r in own if r["measured"] is not None):
            group = next((g for g in alike if _how(g[0]) == _how(row)), None)
            alike.append([row]) if group is None else group.append(row)
        unmeasured = [row for row in own if row["measured"] is None]
        if not alike:
            yield key, None, unmeasured
        for number, group in enumerate(alike):
            shown = group if number else [row for row in own if row in group or row in unmeasured]
            yield key, group[0], shown


def _how(row: dict[str, Any]) -> tuple[int, float, str]:
    return len(row["seeds"]), row["cost"]["seconds"], row["doubt"]


def _spent(row: dict[str, Any] | None, doubts: list[str]) -> str:
    """Seeds, seconds and the number of the doubt, which is entered into `doubts`."""
    if row is None:
        return "not measured"
    seeds, seconds, doubt = _how(row)
    if doubt and doubt not in doubts:
        doubts.append(doubt)
    said = f"; doubt {doubts.index(doubt) + 1}" if doubt else ""
    time = f", {seconds:.0f} s" if seconds >= 100 else f", {seconds:.3g} s" if seconds else ""
    return f"{seeds} {'seed' if seeds == 1 else 'seeds'}{time}{said}"


def _in_columns(cells: Sequence[str], columns: Sequence[int]) -> Iterator[str]:
    """One row, cells wrapped between words and their lines beside each other."""
    parts = [textwrap.wrap(text, size, break_on_hyphens=False) for text, size in zip(cells, columns, strict=True)]
    for line in zip_longest(*parts, fillvalue=""):
        yield (MARGIN + "  ".join(text.ljust(size) for text, size in zip(line, columns, strict=True))).rstrip()
