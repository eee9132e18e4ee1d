"""The docs' page *measured*, from the newest result of every row: `python -m reproduce.table > measured.md`."""

from __future__ import annotations

import json
from typing import Any

from reproduce.claims.screen import differences, markdown
from reproduce.command import items, last
from reproduce.comparison import beside, measured_text
from reproduce.item import Item
from reproduce.rows import RESULTS, summarised

CLAIMS = """## Claims of the papers

What `leakgauge reproduce` prints, with reasons. What is asked of which rows was written down before the rows were
made: one list a paper in `reproduce/claims`, whose digest every row carries; rows of another list judge nothing. A
verdict is computed by a 95 % interval, never by a mean: *holds* where the whole interval is as the paper has it,
*holds, smaller* where something smaller stands in, which is named, *contrary* where the whole interval is on the other
side and nothing that stands in may be the cause, *open* where neither is so, where two starts differ, or where the
attack is not ahead of what holds nothing of the update, *untestable here* and *not run* with the reason. Of a hundred
claims some five come out otherwise by chance; several comparisons of one claim share its level (Bonferroni).

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
        record["doubt"] or ("–" if record.get("environment", {}).get("commit") else "made by no commit that is known"),
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
    columns = ("setting", "attack", "metric", "published", "measured [95 %]", "floor", "seeds", "seconds", "doubt")
    table = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
    for row in rows:
        seconds = "–" if row["cost"] is None else f"{row['cost']['seconds']:.3g}"
        seeds = str(len(row["seeds"])) if row["seeds"] else "–"
        named = [row[key] for key in ("setting", "attack", "metric", "published")]
        cells = [*named, measured_text(row["measured"]), floor_text(row, records), seeds]
        table += "| " + " | ".join(c.replace("|", "\\|") for c in [*cells, seconds, row["doubt"] or "–"]) + " |\n"
    return head + table


FLOORS = ("grey picture", "another picture of the class", "another picture", "random noise")
"""Attacks that hold nothing of the update."""


def floor_text(row: dict[str, Any], records: list[dict[str, Any]]) -> str:
    """What holds nothing of the update, on the same setting by the same metric; "–" where nothing is kept."""
    own = {r["attack"]: r for r in records if (r["setting"], r["metric"]) == (row["setting"], row["metric"])}
    if row["measured"] is None or row["attack"] in FLOORS:
        return "–"
    return next((f"{name} {own[name]['measured']['mean']:.3g}" for name in FLOORS if name in own), "–")


def counted() -> tuple[int, int]:
    """Published cells that have a measurement beside them, and all of them."""
    rows = [row for item in items().values() for row in beside(item, last(item)) if row["published"] != "–"]
    return sum(row["measured"] is not None for row in rows), len(rows)


def page() -> str:
    """The whole page."""
    beside_them, all_cells = counted()
    papers = (
        f"\n## Papers\n\n{beside_them} of {all_cells} published numbers have a measurement beside them. Made by "
        "`leakgauge reproduce PAPER/ITEM`; `leakgauge reproduce` alone prints the claims.\n"
    )
    rows = "".join(line(record) for record in newest())
    claims = "\n".join(markdown())
    apart = "\n".join(f"* {line}" for line in differences()) or "None so far."
    starts = f"\n### Where the starts differ\n\n{apart}\n"
    return f"{CLAIMS}{claims}\n{starts}{HEAD}{rows}{papers}" + "".join(map(section, items().values()))


if __name__ == "__main__":
    print(page(), end="")
