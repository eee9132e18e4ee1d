"""``python -m hunt.mutants``: whether the hunt finds mistakes that a careless engineer might have made in the product.

Each patch of this folder was written before any was run. It is put into a temporary clone, where a night's hunt begins
as ever (a scenario, an audit, the next scenario) and ends with the first confirmed violation that the same scenario
does not show without the patch, or with its CPU minutes. A row each in ``rows.jsonl``, found or not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hunt.__main__ import Hunt, origin
from hunt.relations import Pair

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ROWS = HERE / "rows.jsonl"
SCENARIOS, AUDITS = 300, 40  # of a night


@dataclass
class Watched(Hunt):
    """A hunt that names what is violated, and reduces nothing."""

    seen: list[str] = field(default_factory=list)

    def _cause(self, pair: Pair, index: int) -> None:
        words = hashlib.sha256(f"{pair.one} {pair.other}".encode()).hexdigest()[:8]
        self.seen.append(f"{pair.relation} {words}")

    def _note(self, name: str, how: str, seen: str, index: int, *, loud: bool) -> None:
        self.seen.append(f"audit, {name.partition(':')[0]}")

    def at(self, index: int, *, audit: bool) -> list[str]:
        """What one scenario, or its audits, violate."""
        self.seen.clear()
        (self.audit if audit else self.scenario)(index)
        return list(self.seen)


def here(first: int, minutes: float, *, single: bool) -> None:
    """In the clone: hunts from a step on (two an index), prints each step that violates anything, and the end."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    hunt = Watched(hashlib.sha256(f"{origin()} False".encode()).hexdigest()[:16])
    for step in range(first, first + 1 if single else 2 * SCENARIOS):
        index, audit = divmod(step, 2)
        if audit and index >= AUDITS:
            continue
        seen = hunt.at(index, audit=bool(audit))
        spent = time.process_time()
        print(json.dumps({"step": step, "seen": seen, "spent": round(spent, 1)}), flush=True)  # noqa: T201
        if spent > 60 * minutes:
            return


def started(clone: Path, *given: str, minutes: float) -> subprocess.Popen[str]:
    """This module in a clone, with its source; a step that never ends is ended in twice the time."""
    most = int(120 * minutes) + 60
    environment = os.environ | {"PYTHONPATH": f"{clone / 'src'}:{clone / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "hunt.mutants", *given],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (most, most)),
    )


def without(clone: Path, step: int, known: dict[int, list[str]]) -> list[str]:
    """What the same step violates without a patch, asked once."""
    if step not in known:
        asked = started(clone, "--here", str(step), "--single", minutes=10)
        out, _ = asked.communicate()
        known[step] = json.loads(out.splitlines()[-1])["seen"] if out else []
    return known[step]


def tried(patch: Path, mutant: Path, plain: Path, minutes: float, known: dict[int, list[str]]) -> dict[str, object]:
    """The row of one patch."""
    git = ["git", "-C", str(mutant)]
    subprocess.run([*git, "apply", str(patch)], check=True)
    commit = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], check=True, capture_output=True, text=True).stdout
    row: dict[str, object] = {"mutant": patch.stem, "found": False, "commit": commit.strip(), "limit_minutes": minutes}
    hunt, steps, spent = started(mutant, "--here", "0", "--minutes", str(minutes), minutes=minutes), 0, 0.0
    assert hunt.stdout is not None
    for line in hunt.stdout:
        told = json.loads(line)
        steps, spent = steps + 1, told["spent"]
        new = [name for name in told["seen"] if name not in without(plain, told["step"], known)] if told["seen"] else []
        if new:
            row |= {"found": True, "by": new[0], "step": told["step"]}
            hunt.kill()
            break
    ended = hunt.wait()
    if ended and not row["found"]:  # raised by the hunt itself, or a step that never ended
        row["ended"] = ended
    subprocess.run([*git, "checkout", "-q", "."], check=True)
    return row | {"steps": steps, "cpu_seconds": spent}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("names", nargs="*", help="patches, by default those without a row")
    asked.add_argument("--minutes", type=float, default=30.0, help="of CPU time, for each; a night's hunt takes 30")
    asked.add_argument("--here", type=int, default=None, help=argparse.SUPPRESS)
    asked.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.here is not None:
        here(given.here, given.minutes, single=given.single)
        return
    have = {json.loads(line)["mutant"] for line in ROWS.read_text().splitlines()} if ROWS.exists() else set[str]()
    known: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        clones = [Path(folder) / name for name in ("mutant", "plain")]
        for clone in clones:
            subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        for patch in sorted(HERE.glob("*.patch")):
            if patch.stem in (given.names or {patch.stem} - have):
                row = tried(patch, *clones, given.minutes, known)
                with ROWS.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)  # noqa: T201 - the result


if __name__ == "__main__":
    main()
