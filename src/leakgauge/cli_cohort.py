"""The command `leakgauge cohort`."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
def cohort(log: Path, json_file: Path | None) -> None:
    """Which single updates do the sums of secure aggregation give away?

    LOG says who took part in which round: a CSV file with the header round,client,weight, or JSON lines with these
    keys. A client's update follows from the sums if a combination of rounds cancels all others; this is decided
    exactly. JSON lines may also list the coordinates that a client sent.

    Exit code 0: no single update follows; 1: one does; 2: the log cannot be used.
    """
    from rich.console import Console

    from leakgauge.risk.cohort_command import cohort_command

    sys.exit(cohort_command(log, json_file=json_file, console=Console()))
