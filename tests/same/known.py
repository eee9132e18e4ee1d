"""Failures of today, each under its cause: the tests of this folder expect them, strictly.

Whoever mends a cause runs ``python tests/same/known.py``, which runs what is listed and takes away what now passes.
It never adds a line.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("known.txt")


def known() -> dict[str, str]:
    """Name of a test → the cause of its failure."""
    causes: dict[str, str] = {}
    cause = ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            cause = line.removeprefix("# ")
        elif line.strip():
            causes[line.strip()] = cause
    return causes


class Passed:
    """Notes which tests of the list pass, although they are expected to fail."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "[XPASS(strict)]" in str(report.longrepr):
            self.names.add(report.nodeid.split("::")[-1])


def pruned(text: str, gone: set[str]) -> str:
    """The list without these, and without causes that have nothing under them."""
    kept = "\n".join(line for line in text.splitlines() if line.strip() not in gone) + "\n"
    return re.sub(r"# .*\n+(?=# |\Z)", "", kept)


if __name__ == "__main__":
    seen = Passed()
    pytest.main([str(LIST.parent), "-q", "-m", "slow or not slow", "--runxfail-known", *sys.argv[1:]], plugins=[seen])
    LIST.write_text(pruned(LIST.read_text(encoding="utf-8"), seen.names), encoding="utf-8")
    print(f"{len(seen.names)} of the list pass, and are taken off")  # noqa: T201 - a command
