"""Odd plans, models, parts and command lines end in one line or in rows, never in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leakgauge.errors import InputError
from leakgauge.study.plan import resolve_plan
from odd import MODELS, ODD, Odd, of_objects, outcome
from promises import Row, keep, peak

SECONDS = 10.0
"""Of processor, most of one."""

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
    "model: on no device",
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


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("squeezed", r"does not run on a made-up batch of 1 \(RuntimeError: size mismatch .*a batch of 1 with finite"),
        ("not a number", "is not finite, as the model's answers are not"),
        ("infinity", "is not finite, as the model's answers are not"),
        ("parameters not finite", "is not finite, as the model's answers are not"),
        ("detached", "does not depend on the model's parameters"),
        ("no gradient", "does not depend on the model's parameters"),
        ("in NumPy", "does not"),
        ("in place", "does not run on a made-up batch of 1 .*inplace operation"),
    ],
)
def test_a_network_that_no_client_could_train_is_refused_before_any_trial(name: str, problem: str) -> None:
    """Each trial failed, as if the client diverged or no layer was driven."""
    with pytest.raises(InputError, match=f"^model: its loss {problem}"):
        resolve_plan(of_objects(model={"odd": MODELS[name]()}))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_that_is_odd_in_one_table(tmp_path: Path) -> None:
    """Each beside the others of its kind, with its time and the memory of all."""
    kinds: dict[str, list[Odd]] = {}
    for odd in ODD:
        kinds.setdefault(odd.name.partition(":")[0], []).append(odd)
    rows, wrong = [], []
    for kind, members in kinds.items():
        slowest, failed = 0.0, 0
        for i, odd in enumerate(members):
            folder, began = tmp_path / kind / str(i), time.process_time()
            folder.mkdir(parents=True)
            found = outcome(odd, folder)
            took = time.process_time() - began
            slowest, bad = max(slowest, took), found.startswith("foreign") or "lines" in found or took > SECONDS
            failed += bad
            wrong += [f"{odd.name}: {found}, {took:.0f} s"] * bad
        promise = f"an odd {kind} is one line or a row, within {SECONDS:g} s"
        rows.append(Row(promise, str(len(members)), failed, f"slowest {slowest:.1f} s, memory {peak()}"))
    keep("odd-input", "tests/test_odd.py", rows)
    assert not wrong


def test_a_full_disk_behind_the_standard_output_is_one_line() -> None:
    """It was a traceback, or exit code 120 and a remark of Python's own."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "leakgauge", "audit", "--example"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "leakgauge: the standard output: No space left on device; name another place, or free space"
    ]
