"""`leakgauge reproduce PAPER/ITEM`: a table or figure of a paper, published numbers beside ours."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from leakgauge.errors import did_you_mean, require
from reproduce.claims.quantity import listed_rows
from reproduce.claims.screen import first_screen, of_paper
from reproduce.comparison import beside, lines, wrapped
from reproduce.item import Inputs, Item, State
from reproduce.runs import Run, latest_run, newest_run

PAPERS = ("mkor", "ci-net", "qian-hansen", "inverting-gradients", "rog")


def items() -> dict[str, Item]:
    """All items by ``paper/name``."""
    names = [f"reproduce.{paper.replace('-', '_')}.items" for paper in PAPERS]
    found = [item for name in names for item in importlib.import_module(name).ITEMS]
    return {f"{item.paper}/{item.name}": item for item in found}


def answer(item: str | None, *, kept: bool, **how: Any) -> None:
    """What `leakgauge reproduce` prints: all claims, a paper's, or an item's result, kept or measured now."""
    if item is None:
        overview(Console())
    elif item in PAPERS:
        of_one_paper(item, Console())
    elif kept:
        kept_result(item, Console())
    else:
        reproduce(item, console=Console(), **how)


def overview(console: Console) -> None:
    """Every claim of the papers, one line each, by what is kept."""
    _print(console, first_screen())


def of_one_paper(paper: str, console: Console) -> None:
    """A paper's claims with their reasons, then its items: how each stands, and which runs are kept."""
    _print(console, _fitting(of_paper(paper), console))
    _print(console, ["", "items (run one: leakgauge reproduce PAPER/ITEM; what is kept of it: --kept)"])
    for name, item in items().items():
        if item.paper == paper:
            runs = {
                "full": newest_run(paper, item.name, quick=False),
                "quick": newest_run(paper, item.name, quick=True),
            }
            found = " and ".join(word for word, run in runs.items() if run is not None) or "none"
            how = f"    {item.state.value}; kept: {found}; full run: {item.needs or '–'}"
            _print(console, _fitting([f"{name}: {item.title}", how], console))


def kept_result(name: str, console: Console) -> None:
    """The kept result of an item beside the published numbers, without running anything.

    Raises:
        InputError: unknown item.
    """
    item = _known(name)
    _print(console, lines(item, last(item), console.width))


def _print(console: Console, text: Iterable[str]) -> None:
    for line in text:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _fitting(text: Iterable[str], console: Console) -> Iterator[str]:
    return (part for line in text for part in wrapped(line, console.width))


def _known(name: str) -> Item:
    known = items()
    require(name in known, "reproduce", f"'{name}' is no paper and no item", did_you_mean(name, [*PAPERS, *known]))
    return known[name]


def reproduce(
    name: str, *, data: Path, quick: bool, json_file: Path | None, console: Console, device: str = "cpu"
) -> None:
    """Measures an item, keeps the result in reproduce/results, and prints it beside what was published.

    Rows are kept attack by attack. After an interruption the same command goes on with that run.

    Raises:
        InputError: unknown item, the data are not there, or the device cannot be used.
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

        def say(text: str) -> None:
            console.print(text, style="dim", markup=False)

        Inputs(data, quick, say, device=device).compute().apply()
        run = Run.begin(item.paper, item.name, quick=quick)
        run.circumstances = {"device": device}
        inputs = Inputs(data, quick, say, run.of, run.keep, device=device)
        run.add(list(item.measure(inputs)))
        run.finish()
        records = run.records
        console.print(f"kept in {run.path}", style="dim")
    _print(console, lines(item, records, console.width))
    if json_file is not None:
        document = {
            "item": name,
            "state": item.state.value,
            "note": item.note,
            "quick": quick,
            "rows": beside(item, records),
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def last(item: Item) -> list[dict[str, Any]]:
    """The kept records of an item: those made under today's list of claims, then the newest others, which say so."""
    if item.state is State.NOT_RUN:
        return []
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record in (*listed_rows(item.paper, item.name), *map(_before, latest_run(item.paper, item.name))):
        found.setdefault((record["setting"], record["attack"], record["metric"]), record)
    return list(found.values())


def _before(record: dict[str, Any]) -> dict[str, Any]:
    made = record["environment"].get("commit") or "no commit"
    return record | {"doubt": "; ".join(filter(None, (f"before the list of claims ({made})", record["doubt"])))}
