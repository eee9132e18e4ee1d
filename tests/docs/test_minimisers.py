"""The page on minimisers is made from measured rows."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import minimisers  # noqa: E402

ROWS = ROOT / "benchmarks" / "results" / "minimisers.jsonl"


def row(seed: int, at: list[float] | None, final: float) -> dict:
    reached = {str(t): at if t <= 20 else None for t in minimisers.TARGETS}
    same = {"network": "n", "attack": "a", "image": 0, "budget": 9, "status": "converged", "evaluations": 9}
    return same | {"seed": seed, "reached": reached, "final": final, "seconds": 2.0}


def test_the_rows_of_the_docs_have_both_of_the_attacks_that_are_compared() -> None:
    there = {(r["network"], r["attack"]) for r in minimisers.rows(ROWS)}
    assert there >= {(n, a) for n in minimisers.NETWORKS for a in ("auto", "inverting-gradients")}


def test_rows_are_of_different_runs() -> None:
    keys = [tuple(r[k] for k in minimisers.KEY) for r in minimisers.rows(ROWS)]
    assert len(set(keys)) == len(keys)


def test_the_table_shows_medians_and_never_where_half_did_not_get_there() -> None:
    table = list(minimisers.table([row(0, [3, 0.1], 20.5), row(1, [7, 0.3], 21.5), row(2, [5, 0.2], 25.0)]))
    assert table[-1] == "| n | a | 9 | 1 × 3 | 0.2 s / 5 | 0.2 s / 5 | – | – | – | 21.5 | 2 |"
    half = list(minimisers.table([row(0, [3, 0.1], 20.5), row(1, None, 11.5)]))
    assert half[-1] == "| n | a | 9 | 1 × 2 | – | – | – | – | – | 16.0 | 2 |"
