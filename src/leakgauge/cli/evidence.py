"""Commands beside an audit: `privacy test`, `cohort`, `lint`, `compare` and `estimate`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument("path", required=False)
@click.option("--defense", help="Test a defence of this package instead: '{dp-sgd: {norm: 1, noise_multiplier: 1}}'.")
@click.option("--noise-multiplier", type=float, help="As stated: noise on the sum over the clip, in one release.")
@click.option("--epsilon", type=float, help="As stated for all rounds, without sampling; instead of the multiplier.")
@click.option("--delta", type=float, required=True, help="Below 1 / number of examples (or clients).")
@click.option("--clip", type=float, help="As stated: the norm that each update is clipped to.")
@click.option("--unit", type=click.Choice(("example", "client")), help="Whose update a row is; example by default.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Releases of the same units.")
@click.option("--updates", type=click.IntRange(min=1), help="Rows of each call, if it must be a fixed number.")
@click.option("--canaries", type=click.IntRange(min=20), default=1000, show_default=True)
@click.option("--size", type=click.IntRange(min=20), default=10_000, show_default=True, help="Numbers in an update.")
@click.option("--numpy", "is_numpy", is_flag=True, help="Call the function with NumPy arrays, not PyTorch tensors.")
@click.option("--any-noise", is_flag=True, help="The noise is not Gaussian: use the bound that holds for any.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
def test(path: str | None, **options: Any) -> None:
    """Is the noise really there? Sends canaries through PATH and bounds its ε from below.

    PATH is your own clip-and-noise code, your_package.module:function. It is called with updates, one a row, and a
    generator, and returns what leaves: the noisy sum or mean of the clipped updates.

    Exit code 0: the stated ε is not contradicted, which is no proof; 1: it is, or the test had no power; 2: the input
    cannot be used.
    """
    from rich.console import Console

    from leakgauge.cli.canaries import privacy_test_command

    sys.exit(privacy_test_command(path, **options, console=Console()))


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

    from leakgauge.cli.cohort import cohort_command

    sys.exit(cohort_command(log, json_file=json_file, console=Console()))


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the findings to FILE.")
def lint(target: Path, json_file: Path | None) -> None:
    """What gives data away before any attack is run?

    TARGET is a plan, a captured update, or a folder with captured updates or the source of a Flower app (which is
    parsed, never run). With a plan, one client of each setting is simulated and read by every read that certifies
    itself.

    Exit code 0: nothing of high severity, which is no clearance; 1: something; 2: the input cannot be used.
    """
    from rich.console import Console

    from leakgauge.cli.lint import lint_command

    sys.exit(lint_command(target, json_file=json_file, console=Console()))


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the comparison to FILE.")
def compare(first: Path, second: Path, json_file: Path | None) -> None:
    """Compares two audits of the same examples, example by example.

    FIRST and SECOND are folders of audits, or their report.json. Settings with the same model, client, defence and
    attack are paired, and those that differ in one of them where no others could be meant.
    """
    from rich.console import Console

    from leakgauge.cli.compare import compare_command

    compare_command(first, second, json_file=json_file, console=Console())


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--seconds", type=click.FloatRange(min=1), default=20.0, show_default=True, help="At most, for a trial.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all cores", help="At a time."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the forecast to FILE.")
def estimate(plan: Path, seconds: float, workers: int, json_file: Path | None) -> None:
    """Forecasts trials, time, and the examples that PLAN's gate needs before it can decide.

    Runs one trial of each model, client and attack, and keeps none of it.
    """
    from rich.console import Console

    from leakgauge.cli.estimate import estimate_command

    estimate_command(plan, seconds=seconds, workers=workers, json_file=json_file, console=Console())
