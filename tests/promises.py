"""The table *promise, tried, failed*: slow tests bring its rows, `python tests/promises.py FOLDER PAGE` writes it."""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "LEAKGAUGE_PROMISES"
"""In the environment: where rows are kept, a file a group."""

HEAD = """# Promises, and what was tried against them

Made by `make slow` from counts of its tests: what was tried, how often it failed, and what that cost. What is
promised is in [What is trusted](../explanation/trust.md), and how each attempt is made in the test that is named.

"""


@dataclass(frozen=True)
class Row:
    """A promise, how often it was put to the test, and how often it was not kept."""

    promise: str
    tried: str
    failed: int
    cost: str = ""


def peak() -> str:
    """Largest memory of this process so far."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"


def keep(group: str, test: str, rows: list[Row]) -> None:
    """Prints the rows, and keeps them where the environment says."""
    for row in rows:
        print(f"{row.promise}: tried {row.tried}, failed {row.failed} {row.cost}")  # noqa: T201 - the result
    if folder := os.environ.get(FOLDER):
        Path(folder).mkdir(parents=True, exist_ok=True)
        content = {"test": test, "rows": [asdict(row) for row in rows]}
        (Path(folder) / f"{group}.json").write_text(json.dumps(content, indent=1) + "\n")


def page(folder: Path) -> str:
    """All groups that were kept, as Markdown."""
    text = HEAD
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text())
        text += f"## {file.stem.replace('-', ' ').capitalize()}\n\n`{content['test']}`\n\n"
        text += "| promise | tried | failed | cost |\n|---|---|---|---|\n"
        for row in content["rows"]:
            text += f"| {row['promise']} | {row['tried']} | {row['failed']} | {row['cost']} |\n"
        text += "\n"
    return text.rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])))
