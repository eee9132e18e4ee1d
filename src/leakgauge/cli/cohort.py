"""`leakgauge cohort`: single updates that the sums of secure aggregation give away."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.cli.options import PATH, show, to_json, write_json
from leakgauge.errors import count_of

if TYPE_CHECKING:
    from leakgauge.risk.cohort import Cohort

SHOWN = 20  # lines of each list that the terminal shows; the JSON file has all


@click.command()
@click.argument("log", type=PATH)
@click.option(
    "--read-up-to",
    "largest",
    type=click.IntRange(min=1),
    help="Largest batch of which a layer of the network gives all features away: leakgauge count says it.",
)
@click.option(
    "--examples",
    type=click.IntRange(min=1),
    help="Examples of a client in a round, each counted at every step, where the log has no such column.",
)
@to_json("the result")
def cohort(log: Path, largest: int | None, examples: int | None, json_file: Path | None) -> None:
    """Which single updates do the sums of secure aggregation give away, and which sums all examples' features?

    LOG says who took part in which round: a CSV file with the header round,client,weight,examples, or JSON lines with
    these keys. A client's update follows from the sums if a combination of rounds cancels all others; this is decided
    exactly. JSON lines may also list the coordinates that a client sent. A sum is one more batch: with --read-up-to,
    sums of no more examples are named, as a layer gives the features of each away.

    Exit code 0: neither follows; 1: one does; 2: the log cannot be used.
    """
    from leakgauge.risk.cohort import read_cohort, read_log

    found, console = read_cohort(read_log(log), largest or 0, examples), Console()
    write_json(json_file, record(found))
    show(verdict(found), f"rank of the participation matrix: {found.rank} of {found.clients} clients")
    if found.determined:
        table = Table("client", "rounds combined", "drift enters × ", box=None, pad_edge=False)
        for d in found.determined[:SHOWN]:
            alone = d.alone_in is not None
            read = f"none: alone in round {d.alone_in}" if alone else str(d.rounds)
            table.add_row(d.client, read, "–" if alone else f"{d.drift_gain:.1f}")
        console.print(table)
    console.print(*map(Text, _lines(found, asked=largest is not None)), sep="\n")
    sys.exit(1 if found.determined or found.alone or found.combined or found.whole else 0)


def _lines(found: Cohort, *, asked: bool) -> Iterator[str]:
    yield from _rest(found.determined)
    lists = {
        "pairs of which one combination is known:": [f"{a} and {b}" for a, b in found.pairs],
        "entries that one client alone sent, so that they are in clear in the sum:": [
            f"round {name}, client {client}: {count}" for (name, client), count in found.alone.items()
        ],
        "entries that follow from several rounds, as not all clients sent them in all:": [
            f"client {client}: {count}" for client, count in found.combined.items()
        ],
        "sums of which a layer gives the features of all examples away, and how many, each counted at every step:": [
            f"{name}: {count}" for name, count in found.whole.items()
        ],
    }
    for title, each in lists.items():
        if each:
            yield title
            yield from (f"  {line}" for line in each[:SHOWN])
            yield from _rest(each)
    if found.unread:
        yield f"entries that were not combined over rounds, being too unlike: {found.unread}"
    if found.uncounted:
        yield f"sums not compared with --read-up-to: {found.uncounted}; give examples in the log, or --examples"
    if not found.determined and not found.pairs:
        yield f"smallest group found: {', '.join(found.group.clients[:SHOWN])}"
    yield (
        "Updates that stay the same over the rounds are the worst case. Where they vary from round to round by noise "
        "of size s, a read is off by s times the factor above; a round with one client is read as it is."
    )
    sums = "what else a sum shows of its examples" if asked else "what a sum shows of its examples (--read-up-to)"
    yield f"Not covered: what several clients tell the server, and {sums}."


def _rest(each: Sequence[object]) -> Iterator[str]:
    if len(each) > SHOWN:
        yield f"  and {len(each) - SHOWN} more: --json FILE has all"


def record(found: Cohort) -> dict[str, object]:
    alone = [{"round": name, "client": client, "entries": count} for (name, client), count in found.alone.items()]
    assumes = "updates stay the same over the rounds"
    return asdict(found) | {"alone": alone, "assumes": assumes, "verdict": verdict(found)}


def verdict(found: Cohort) -> str:
    lonely = [d for d in found.determined if d.alone_in is not None]
    size = f"{found.clients} clients in {found.rounds} rounds"
    none = f"No whole update follows from the sums of {size}, but"
    if lonely:
        return f"{count_of(len(lonely), 'update')} can be read off a round with a single client ({size})."
    if found.determined:
        several = count_of(len(found.determined), "single update")
        return f"{several} can be computed from the sums of {size}, if updates stay the same over the rounds."
    if found.alone:
        return f"{none} {count_of(len(found.alone), 'update')} sent entries that nobody else sent."
    if found.combined:
        return f"{none} entries of {count_of(len(found.combined), 'update')} do, from several rounds."
    if found.whole:
        return f"{none} a layer gives the features of all examples away in {count_of(len(found.whole), 'sum')}."
    least = len(found.group.clients)
    bound = f"exactly {least}" if found.group.smallest else f"at least 3, {least} found"
    return f"No single update follows from the sums of {size}. Smallest group whose combination is known: {bound}."
