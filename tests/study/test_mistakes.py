"""The grid of mistakes about a captured round: a sample of it, and its rows against its claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import mistakes  # noqa: E402


def test_the_kept_rows_are_the_whole_grid_and_meet_its_claims() -> None:
    rows = [json.loads(line) for line in (ROOT / "benchmarks" / "results" / "mistakes.jsonl").read_text().splitlines()]
    keys = {(r["norm"], r["optimiser"], r["examples"], r["index"], r["mistake"]) for r in rows}
    assert len(keys) == len(rows) == mistakes.ROUNDS * (len(mistakes.CELLS) * 11 - 4)
    for mistake in (None, *mistakes.MISTAKES):
        own = [r["right"] for r in rows if r["mistake"] == mistakes.named(mistake)]
        assert sum(own) >= (1.0 if mistake is None else mistakes.NAMED) * len(own)


def test_a_client_without_others_beside_it_is_judged(tmp_path: Path) -> None:
    """With all of its examples recorded and nobody else's, the check refused itself: nothing to compare with."""
    of = mistakes.captured(tmp_path, mistakes.Cell("batched", "sgd", 16), 1)
    for mistake, plan in mistakes.plans(of):
        if mistake in (None, mistakes.rate):
            row = mistakes.looked(of, mistake, plan)
            assert row["right"], row["sentence"]
