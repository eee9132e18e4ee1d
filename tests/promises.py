"""The table *promise, tried, failed*: slow tests bring its rows, `python tests/promises.py FOLDER PAGE` writes it."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = "LEAKGAUGE_PROMISES"
"""In the environment: where rows are kept, a file a group."""

HEAD = """# Promises, and what was tried against them

Made by `make promises` from counts of its tests. What is promised is on the page
[what is trusted](../explanation/trust.md).

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


def merged(rows: list[Row]) -> list[Row]:
    """Rows of one promise about many files as one: the files are counted, and what was tried of each is added up."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(re.sub(r"a damaged `[^`]+`", "a damaged file", row.promise), []).append(row)
    return [own[0] if len(own) == 1 else _sum(promise, own) for promise, own in groups.items()]


def _sum(promise: str, rows: list[Row]) -> Row:
    counts = [[int(number) for number in re.findall(r"\d+", row.tried)] for row in rows]
    tried, refused = (sum(numbers[i] for numbers in counts) for i in (0, 1))
    slowest = max(float(re.findall(r"[\d.]+", row.cost)[0]) for row in rows)
    said = f"{tried} of {len(rows)} kinds, of which {refused} were refused"
    return Row(promise, said, sum(row.failed for row in rows), f"slowest {slowest:.2f} s")


def page(folder: Path) -> str:
    """All groups that were kept, as Markdown."""
    text = HEAD
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text())
        text += f"## {file.stem.replace('-', ' ').capitalize()}\n\n`{content['test']}`\n\n"
        text += "| promise | tried | failed | cost |\n|---|---|---|---|\n"
        for row in merged([Row(**row) for row in content["rows"]]):
            text += f"| {row.promise} | {row.tried} | {row.failed} | {row.cost} |\n"
        text += "\n"
    return text.rstrip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])))
