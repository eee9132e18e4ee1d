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

HUNTS = Path(__file__).parent / "hunt" / "kept.json"
"""Hunts with words that nobody had looked at: ``python -m hunt --held-out --keep WORDS`` adds one."""

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


RUN = re.compile(r"a run of \w+")


def together(rows: list[Row]) -> list[Row]:
    """Rows of one promise about several kinds of runs as one: all numbers of what was tried are added up."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(RUN.sub("a run", row.promise), []).append(row)
    return [own[0] if len(own) == 1 else _added(promise, own) for promise, own in groups.items()]


def _added(promise: str, rows: list[Row]) -> Row:
    head = rows[0].tried.partition(" (")[0]
    counts = [[int(n) for n in re.findall(r"\d+", row.tried.partition(" (")[0])] for row in rows]
    sums = iter([sum(numbers) for numbers in zip(*counts, strict=True)])
    said, ways = re.sub(r"\d+", lambda _: str(next(sums)), head), dict[str, int]()
    listed = ", ".join(row.tried.partition(" (")[2].rstrip(")") for row in rows)
    for way, n in re.findall(r"([a-z ]+) (\d+)", listed):
        ways[way.strip()] = ways.get(way.strip(), 0) + int(n)
    said += f" ({', '.join(f'{way} {n}' for way, n in ways.items())})" if ways else ""
    slowest = max((row.cost for row in rows), key=lambda cost: [float(n) for n in re.findall(r"[\d.]+", cost)])
    return Row(promise, said, sum(row.failed for row in rows), slowest)


ASKED = 3.0  # scenarios in a hundred, by the upper bound


def hunts(kept: Path = HUNTS) -> str:
    """What hunts with words that nobody had looked at came to, loud and calm apart, and what is missed."""
    found = json.loads(kept.read_text())
    met = all(one["upper"] < ASKED for one in found["hunts"][-1:])
    text = "## Hunts\n\n`tests/hunt`, in spellings written blind. "
    text += f"Asked: upper bound below {ASKED:g} in a hundred: **{'met' if met else 'missed'}**. {found['why']}\n\n"
    text += "| words | commit | scenarios | less read | upper 95 % bound | wrong certificates | contradictions |\n"
    text += "|---|---|---|---|---|---|---|\n"
    for one in found["hunts"]:
        numbers = (one[key] for key in ("scenarios", "violated", "upper", "wrong", "contradictions"))
        text += f"| {one['words']} | `{one['commit']}` | {' | '.join(map(str, numbers))} |\n"
    for one in [one for one in found["hunts"] if one.get("curve")][-1:]:
        told = one["curve"][-1 :: -max(1, len(one["curve"]) // 4)][::-1]
        said = ", ".join(f"{loud} and {calm} in {spent / 3600:.1f}" for spent, _, loud, calm in told)
        text += f"\nCauses of the {one['words']}, loud and calm, by CPU hours: {said}.\n"
    for one in found["audits"]:
        since = ", mended since" * bool(one["reassured"])
        said = f"{one['reassured']} reassured wrongly{since}; {one['alarmed']} alarmed wrongly"
        text += f"\n{one['audits']} audits of {one['asked']} asked (`{one['commit']}`): {said}.\n"
    return text


def page(folder: Path) -> str:
    """All groups that were kept, those of one test together, as Markdown."""
    groups: dict[str, tuple[list[str], list[Row]]] = {}
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text())
        names, rows = groups.setdefault(content["test"], ([], []))
        names.append(file.stem.removeprefix("chaos-").replace("-", " "))
        rows.extend(Row(**row) for row in content["rows"])
    text = HEAD
    for test, (names, rows) in groups.items():
        name = names[0] if len(names) == 1 else f"chaos: {', '.join(names)}"
        text += f"## {name.capitalize()}\n\n`{test}`\n\n"
        text += "| promise | tried | failed | cost |\n|---|---|---|---|\n"
        for row in together(merged(rows)):
            text += f"| {row.promise} | {row.tried} | {row.failed} | {row.cost} |\n"
        text += "\n"
    return text + hunts()


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])))
