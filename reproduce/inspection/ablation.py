"""What each rule of `leakgauge inspect` adds: `python -m reproduce.inspection.ablation JUDGED.jsonl -o RESULT.json`.

Reads the lines of `reproduce.inspection.judging` with model and data, and counts for each kind of crafted model how
many each rule catches alone and how many nothing else catches, at the packaged limits.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leakgauge.inspection.rule import Limits
from leakgauge.intervals import proportion_interval

HONEST, LOOKALIKE = "honest", "lookalike"

Fired = Mapping[str, Sequence[frozenset[str]]]
"""Kind → of each model the rules that reached their limits."""


@dataclass(frozen=True)
class Added:
    """What a rule adds: models of each kind that it catches, and those that nothing else catches; kinds without any
    are left out."""

    rule: str
    alone: Mapping[str, int]
    only: Mapping[str, int]
    false_alarms: int


def fired(lines: Sequence[Mapping[str, Any]], limits: Limits) -> dict[str, list[frozenset[str]]]:
    """By the kind that was asked for."""
    found: dict[str, list[frozenset[str]]] = {}
    for line in lines:
        over = frozenset(r for r, v in line["statistics"].items() if r in limits.limits and v >= limits.limits[r])
        found.setdefault(line["asked"], []).append(over)
    return found


def ablation(found: Fired, rules: Sequence[str]) -> list[Added]:
    """A row a rule."""
    crafted = {kind: models for kind, models in found.items() if kind not in (HONEST, LOOKALIKE)}

    def counted(hit: Any) -> dict[str, int]:
        return {kind: n for kind, models in crafted.items() if (n := sum(map(hit, models)))}

    return [
        Added(
            rule,
            alone=counted(lambda over, rule=rule: rule in over),
            only=counted(lambda over, rule=rule: over == {rule}),
            false_alarms=sum(rule in over for over in found.get(HONEST, ())),
        )
        for rule in rules
    ]


def table(rows: Sequence[Added], found: Fired) -> str:
    """Markdown: a line a rule; shares of kinds of which it catches any."""

    def cells(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{kind} {n}/{len(found[kind])}" for kind, n in counts.items()) or "–"

    lines = ["| rule | alone | nothing else | honest |", "|---|---|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{r.rule}` | {cells(r.alone)} | {cells(r.only)} | {r.false_alarms} |" for r in rows)]
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("judged", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.judged.read_text(encoding="utf-8").splitlines()]
    limits = Limits.packaged()
    found = fired(lines, limits)
    rows = ablation(found, sorted(limits.limits))
    kinds = {}
    for kind, models in found.items():
        hits, n = sum(map(bool, models)), len(models)
        ends = proportion_interval(hits, n)
        kinds[kind] = {"hits": hits, "of": n, "low": ends.low, "high": ends.high}
    record = {
        "kinds": kinds,
        "rules": [asdict(row) for row in rows],
        "fired": {kind: [sorted(over) for over in models] for kind, models in found.items()},
        "limits": dict(limits.limits),
    }
    arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(rows, found))


if __name__ == "__main__":
    main()
