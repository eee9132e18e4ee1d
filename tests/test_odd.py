"""Odd plans, models, parts and command lines end in one line or in rows, never in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odd import ODD, Odd, outcome

WERE_TRACEBACKS = {
    "plan: noise on: 1",
    "plan: seed of 31 digits",
    "plan: 3 000 brackets",
    "plan: 3 000 braces",
    "plan: !!int x",
    "plan: !!timestamp",
    "plan: a lone surrogate",
    "plan: markup as a name",
    "plan: source: os.path:join",
    "plan: gallery of 10^30",
    "plan: hidden of 10^30",
    "model: a tuple",
    "model: a dict",
    "model: two inputs",
    "model: raises MemoryError",
    "model: raises SystemExit",
    "model: a lazy module",
    "model: old weight_norm",
    "command: a long output",
    "command: captured of braces",
}


def test_the_names_are_in_the_table() -> None:
    assert {odd.name for odd in ODD} >= WERE_TRACEBACKS
    assert len({odd.name for odd in ODD}) == len(ODD)


@pytest.mark.parametrize(
    "odd",
    [pytest.param(odd, id=odd.name, marks=[] if odd.name in WERE_TRACEBACKS else pytest.mark.slow) for odd in ODD],
)
def test_what_is_odd_is_one_line_or_a_row(odd: Odd, tmp_path: Path) -> None:
    found = outcome(odd, tmp_path)
    assert not found.startswith("foreign"), found
    assert "lines" not in found


def test_a_full_disk_behind_the_standard_output_is_one_line() -> None:
    """It was a traceback, or exit code 120 and a remark of Python's own."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "leakgauge", "audit", "--example"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "leakgauge: the standard output: No space left on device; name another place, or free space"
    ]
