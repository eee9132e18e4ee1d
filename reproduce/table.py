"""The docs' page *measured*, from the newest result of every row; the docs build writes it."""

from __future__ import annotations

import json
from typing import Any

from reproduce.claims.screen import markdown
from reproduce.command import items, last
from reproduce.comparison import beside, measured_text
from reproduce.item import Item
from reproduce.rows import RESULTS, summarised

CLAIMS = """## Claims of the papers

What `leakgauge reproduce` prints, with reasons. A verdict is computed from the kept rows, by a 95 % interval, never by
a mean: *holds* where the whole interval is as the paper has it, *holds, smaller* where that took fewer steps, images, a
smaller batch, a narrower network or other data, *other method* where another method stands for the paper's, *contrary*
where the whole interval is on the other side after at least half of the paper's steps, *inconclusive* where neither is
so, or where the attack is not ahead of a grey picture. Effort is the share of what the paper spent.

"""

HEAD = """
## Rows

Made from the results in `reproduce/results` (one file a run, none overwritten). The
commands that make them are `python -m reproduce.lenet all` and `python -m reproduce.labels`. Images are the first of a
JPEG re-encoding of CIFAR-10's test set, which is in another order than CIFAR-10's own; seeds are seeds of the weights.
Seconds are those of a clock, for one image or client, on one core that most often did other work as well: the same
attack's differ up to fivefold between rows, and a quick run took up to 26 minutes there; evaluations compare. Intervals
are 95 % (Student's) of the mean over images (or clients; over seeds where there is one image), with few of them
too narrow. PSNR stops at 300 dB, an exact copy.

| row | setting | published | mean [95 %] | median | by seed | gradient evaluations | seconds | doubt |
|---|---|---|---|---|---|---|---|---|
"""


def newest() -> list[dict[str, Any]]:
    """The last result of every row, by name."""
    rows: dict[str, dict[str, Any]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "row" in record:
            rows[record["row"]] = summarised(record)
    return [rows[name] for name in sorted(rows)]


def published(record: dict[str, Any]) -> str:
    """A paper's number; older results of our own rows carry an aim instead, which says nothing here."""
    claimed = record["claimed"] or "–"
    return "–" if claimed.startswith(">=") else claimed


def line(record: dict[str, Any]) -> str:
    """One row of the table; evaluations and seconds are of one image or client."""
    measured = record["measured"]
    ends = "" if measured["low"] is None else f" [{measured['low']:.3g}, {measured['high']:.3g}]"
    seeds = ", ".join(f"{v:.3g}" for v in measured["by_seed"]) if len(measured["by_seed"]) > 1 else "–"
    cells = [
        record["row"],
        record["setting"],
        published(record),
        f"{measured['mean']:.3g}{ends}",
        f"{measured['median']:.3g}",
        seeds,
        str(record["gradient_evaluations"]),
        f"{record['seconds']:.3g}",
        record["doubt"] or "–",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def section(item: Item) -> str:
    """A table or figure of a paper, published numbers beside the newest measured ones."""
    records = last(item)
    state = item.state.value if records or item.measure is None else f"{item.state.value}, not run yet"
    head = f"\n### {item.paper}/{item.name}: {item.title}\n\n*{state.capitalize()}.* {item.note}\n\n"
    rows = beside(item, records)
    if not rows:
        return head
    columns = ("setting", "attack", "metric", "published", "measured [95 %]", "seeds", "seconds", "doubt")
    table = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    for row in rows:
        seconds = "–" if row["cost"] is None else f"{row['cost']['seconds']:.3g}"
        seeds = str(len(row["seeds"])) if row["seeds"] else "–"
        cells = [row["setting"], row["attack"], row["metric"], row["published"], measured_text(row["measured"]), seeds]
        table += "| " + " | ".join(c.replace("|", "\\|") for c in [*cells, seconds, row["doubt"] or "–"]) + " |\n"
    return head + table


def page() -> str:
    """The whole page."""
    papers = "\n## Papers\n\nMade by `leakgauge reproduce PAPER/ITEM`; `leakgauge reproduce` alone lists the items.\n"
    rows = "".join(line(record) for record in newest())
    claims = "\n".join(markdown())
    return f"{CLAIMS}{claims}\n{HEAD}{rows}{papers}" + "".join(map(section, items().values()))
