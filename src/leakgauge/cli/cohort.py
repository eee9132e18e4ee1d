"""Everything behind `leakgauge cohort`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.files import write_whole
from leakgauge.risk.cohort import Cohort, read_cohort
from leakgauge.risk.cohort_log import read_log

SHOWN = 20
"""Lines of each list that the terminal shows; the JSON file has all."""


def cohort_command(path: Path, *, json_file: Path | None, console: Console) -> int:
    """Prints what the sums give away. Returns the exit code: 1 where some client's own update or entries follow.

    Raises:
        InputError: the log cannot be used.
    """
    found = read_cohort(read_log(path))
    if json_file is not None:
        write_whole(json_file, json.dumps(record(found), indent=1, ensure_ascii=False) + "\n")
    _show(console, found)
    return 1 if found.determined or found.alone or found.combined else 0


def record(found: Cohort) -> dict[str, object]:
    """The result as JSON has it."""
    alone = [{"round": name, "client": client, "entries": count} for (name, client), count in found.alone.items()]
    return asdict(found) | {
        "alone": alone,
        "assumes": "updates stay the same over the rounds",
        "verdict": verdict(found),
    }


def verdict(found: Cohort) -> str:
    """One sentence."""
    lonely = sum(d.alone_in is not None for d in found.determined)
    size = f"{found.clients} clients in {found.rounds} rounds"
    if lonely:
        return f"{_number(lonely, 'update')} can be read off a round with a single client ({size})."
    if found.determined:
        return (
            f"{_number(len(found.determined), 'single update')} can be computed from the sums of {size}, if updates "
            "stay the same over the rounds."
        )
    if found.alone:
        count = _number(len(found.alone), "update")
        return f"No whole update follows from the sums of {size}, but {count} sent entries that nobody else sent."
    if found.combined:
        count = _number(len(found.combined), "update")
        return f"No whole update follows from the sums of {size}, but entries of {count} do, from several rounds."
    least = len(found.group.clients)
    bound = f"exactly {least}" if found.group.smallest else f"at least 3, {least} found"
    return f"No single update follows from the sums of {size}. Smallest group whose combination is known: {bound}."


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _show(console: Console, found: Cohort) -> None:
    console.print(Text(verdict(found), style="bold"))
    console.print(Text(f"rank of the participation matrix: {found.rank} of {found.clients} clients"))
    if found.determined:
        table = Table("client", "rounds combined", "drift enters × ", box=None, pad_edge=False)
        for d in found.determined[:SHOWN]:
            read = f"none: alone in round {d.alone_in}" if d.alone_in is not None else str(d.rounds)
            table.add_row(d.client, read, "–" if d.alone_in is not None else f"{d.drift_gain:.1f}")
        console.print(table)
        _rest(console, len(found.determined))
    if found.pairs:
        console.print(Text("pairs of which one combination is known:"))
        for a, b in found.pairs[:SHOWN]:
            console.print(Text(f"  {a} and {b}"))
        _rest(console, len(found.pairs))
    if found.alone:
        console.print(Text("entries that one client alone sent, so that they are in clear in the sum:"))
        for (name, client), count in list(found.alone.items())[:SHOWN]:
            console.print(Text(f"  round {name}, client {client}: {count}"))
        _rest(console, len(found.alone))
    if found.combined:
        console.print(Text("entries that follow from several rounds, as not all clients sent them in all:"))
        for client, count in list(found.combined.items())[:SHOWN]:
            console.print(Text(f"  client {client}: {count}"))
        _rest(console, len(found.combined))
    if found.unread:
        console.print(Text(f"entries that were not combined over rounds, being too unlike: {found.unread}"))
    if not found.determined and not found.pairs:
        console.print(Text(f"smallest group found: {', '.join(found.group.clients[:SHOWN])}"))
    console.print(
        Text(
            "Updates that stay the same over the rounds are the worst case. Where they vary from round to round by "
            "noise of size s, a read is off by s times the factor above; a round with one client is read as it is."
        )
    )
    console.print(Text("Not covered: what several clients tell the server, and what a sum itself shows of a batch."))


def _rest(console: Console, count: int) -> None:
    if count > SHOWN:
        console.print(Text(f"  and {count - SHOWN} more: --json FILE has all"))
