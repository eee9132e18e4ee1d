"""`leakgauge reproduce PAPER/ITEM`: a table or figure of a paper, published numbers beside ours."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from leakgauge.errors import did_you_mean, require
from reproduce.claims.screen import first_screen, of_paper
from reproduce.item import Inputs, Item, State
from reproduce.runs import Run, latest_run, newest_run

PAPERS = ("mkor", "ci-net", "qian-hansen", "inverting-gradients", "rog")


def items() -> dict[str, Item]:
    """All items by ``paper/name``."""
    names = [f"reproduce.{paper.replace('-', '_')}.items" for paper in PAPERS]
    found = [item for name in names for item in importlib.import_module(name).ITEMS]
    return {f"{item.paper}/{item.name}": item for item in found}


def overview(console: Console) -> None:
    """Every claim of the papers, one line each, by what is kept."""
    _print(console, first_screen())


def of_one_paper(paper: str, console: Console) -> None:
    """A paper's claims with their reasons, then its items: how each stands, and which runs are kept."""
    _print(console, of_paper(paper))
    _print(console, ["", "items (run one: leakgauge reproduce PAPER/ITEM; what is kept of it: --kept)"])
    for name, item in items().items():
        if item.paper == paper:
            runs = {
                "full": newest_run(paper, item.name, quick=False),
                "quick": newest_run(paper, item.name, quick=True),
            }
            found = " and ".join(word for word, run in runs.items() if run is not None) or "none"
            how = f"    {item.state.value}; kept: {found}; full run: {item.needs or '–'}"
            _print(console, [f"{name}: {item.title}", how])


def kept(name: str, console: Console) -> None:
    """The kept result of an item beside the published numbers, without running anything.

    Raises:
        InputError: unknown item.
    """
    item = _known(name)
    table, doubts = comparison(item, last(item))
    console.print(table)
    for number, doubt in enumerate(doubts, 1):
        console.print(f"{number}  {doubt}")


def _print(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _known(name: str) -> Item:
    known = items()
    require(name in known, "reproduce", f"'{name}' is no paper and no item", did_you_mean(name, [*PAPERS, *known]))
    return known[name]


def reproduce(name: str, *, data: Path, quick: bool, json_file: Path | None, console: Console) -> None:
    """Measures an item, keeps the result in reproduce/results, and prints it beside what was published.

    Rows are kept attack by attack. After an interruption the same command goes on with that run.

    Raises:
        InputError: unknown item, or the data are not there.
    """
    item = _known(name)
    if json_file is not None:
        require(json_file.absolute().parent.is_dir(), "--json", f"no folder '{json_file.parent}'", "make it first")
    records: list[dict[str, Any]] = []
    if item.measure is not None:
        require(
            data.is_dir(),
            "data",
            f"{data} is not a folder",
            "give --data FOLDER with the Parquet files of the data sets",
        )
        from leakgauge.compute import Compute  # as the items do, it loads torch

        Compute().apply()
        run = Run.begin(item.paper, item.name, quick=quick)
        inputs = Inputs(data, quick, lambda text: console.print(text, style="dim"), run.of, run.keep)
        run.add(list(item.measure(inputs)))
        run.finish()
        records = run.records
        console.print(f"kept in {run.path}", style="dim")
    table, doubts = comparison(item, records)
    console.print(table)
    for number, doubt in enumerate(doubts, 1):
        console.print(f"{number}  {doubt}")
    if json_file is not None:
        document = {
            "item": name,
            "state": item.state.value,
            "note": item.note,
            "quick": quick,
            "rows": beside(item, records),
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


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
        rows.append(_line(cell.setting, cell.attack, cell.metric, cell.text, record))
    left = {key: record for key, record in left.items() if key not in used}
    for (setting, attack, metric), record in left.items():
        rows.append(_line(setting, attack, metric, record["claimed"] or "–", record))
    return rows


def _line(setting: str, attack: str, metric: str, claimed: str, record: dict[str, Any] | None) -> dict[str, Any]:
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


def comparison(item: Item, records: list[dict[str, Any]]) -> tuple[Table, list[str]]:
    """The table that is printed, published above measured, and the doubts that its last column numbers."""
    title = f"{item.paper}/{item.name}: {item.title}\n{item.state.value}" + (f": {item.note}" if item.note else "")
    rows = beside(item, records)
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    table, doubts = Table(title=title, show_lines=True, caption="published, then measured [95 %]"), []
    for column in ("setting", "attack", *metrics, "seeds", "seconds", "doubt"):
        table.add_column(column, overflow="fold")
    for setting, attack in dict.fromkeys((row["setting"], row["attack"]) for row in rows):
        own = {row["metric"]: row for row in rows if (row["setting"], row["attack"]) == (setting, attack)}
        cells = [f"{r['published']}\n{measured_text(r['measured'])}" if (r := own.get(m)) else "" for m in metrics]
        measured = [row for row in own.values() if row["cost"] is not None]
        seeds = str(len(measured[0]["seeds"])) if measured else "–"
        seconds = f"{measured[0]['cost']['seconds']:.3g}" if measured else "–"
        said = next((row["doubt"] for row in own.values() if row["doubt"]), "")
        if said and said not in doubts:
            doubts.append(said)
        table.add_row(setting, attack, *cells, seeds, seconds, str(doubts.index(said) + 1) if said else "–")
    return table, doubts


def last(item: Item) -> list[dict[str, Any]]:
    """The newest kept records of an item, a full run before a quick one."""
    return [] if item.state is State.NOT_RUN else latest_run(item.paper, item.name)
