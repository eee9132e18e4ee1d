"""The commands beside `audit`, `inspect` and `frontier`, as options; what they do is imported when one runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from leakgauge.errors import did_you_mean, require


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

    from leakgauge.cli.gate import compare_command

    compare_command(first, second, json_file=json_file, console=Console())


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--seconds", type=click.FloatRange(min=1), default=20.0, show_default=True, help="At most, for a trial.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all cores", help="At a time."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the forecast to FILE.")
def estimate(plan: Path, seconds: float, workers: int, json_file: Path | None) -> None:
    """Forecasts trials, time, the clients that PLAN's gate needs, and whether a search is known to work on such.

    Runs one trial of each model, client and attack, and keeps none of it.
    """
    from rich.console import Console

    from leakgauge.cli.lint import estimate_command

    estimate_command(plan, seconds=seconds, workers=workers, json_file=json_file, console=Console())


@click.command()
@click.argument("model")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Examples in the client's batch.")
@click.option("--shape", help="Of one example, e.g. 3,32,32 or 1,256. By default what the model's arguments say.")
@click.option("--classes", type=click.IntRange(min=2), help="Number of labels; 10 unless the model's arguments say.")
@click.option(
    "--data",
    help="Count at real examples: a source as in a plan, which says shape and classes. By default uniform noise.",
)
@click.option("--soft-labels", is_flag=True, help="Labels are unknown and may be soft.")
@click.option("--mode", type=click.Choice(("eval", "train")), default="eval", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and examples.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
def count(model: str, **options: Any) -> None:
    """Counts what one update of MODEL says about a batch: unknowns against equations, and the numerical rank.

    MODEL is a name, package.module:function, or '{name: {parameter: value}}'. No attack is run. A full rank says
    that the update fixes the batch near the true one; that the search for it succeeds is another question.
    """
    from leakgauge.cli.count import count_command

    count_command(model, **options)


@click.group(invoke_without_command=True)
@click.option("--noise-multiplier", type=float, help="Noise on the sum, in units of the clip norm.")
@click.option("--target-epsilon", type=float, help="Solve for the noise multiplier instead.")
@click.option("--sample-rate", type=float, help="Probability that an example (or client) is in a step; 1 for all.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Noisy steps in a round.")
@click.option("--delta", type=float, help="Below 1 / number of examples (or clients). Required.")
@click.option("--units", type=click.IntRange(min=1), help="Number of examples (or clients); δ is held against it.")
@click.option("--accountant", help="prv or rdp; prv where there is no ledger.")
@click.option("--unit", type=click.Choice(("example", "client")), help="Whose presence is hidden; example by default.")
@click.option("--prior", type=float, default=1e-3, show_default=True, help="Chance of a guess without the updates.")
@click.option("--ledger", type=click.Path(path_type=Path), help="Enter this training into FILE, and count all in it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
@click.pass_context
def privacy(context: click.Context, /, **options: Any) -> None:
    """Counts the ε of clip and noise (dp-sgd, client-dp), and says what it means for reconstruction.

    With a --ledger and no multiplier it says what has been spent. Needs the extra dp (pip install leakgauge[dp]).

    `leakgauge privacy test` checks whether the noise of your own code is what an ε rests on.
    """
    if context.invoked_subcommand is not None:
        return
    require(options["delta"] is not None, "--delta", "is missing", "give less than 1 / number of examples (or clients)")
    from rich.console import Console

    from leakgauge.cli.privacy import privacy_command

    privacy_command(**options, console=Console())


privacy.add_command(test)


KINDS = (
    "attacks",
    "defenses",
    "metrics",
    "models",
    "data",
    "clients",
    "optimisers",
    "servers",
    "objectives",
    "priors",
    "canvases",
    "minimisers",
    "labels",
    "taps",
    "heads",
    "losses",
    "training-losses",
    "rules",
)


def _kind(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    """One of `KINDS`; another word is answered with the nearest of them, as a plan's keys are."""
    problem = "says no kind" if value is None else f"knows no '{value}'"
    require(value in KINDS, "list", problem, did_you_mean(value or "", KINDS))
    return value or ""


@click.command(
    "list",
    help=f"""Names that a plan may use, a line each; with NAME that one in full, its parameters and needs.

    KIND is one of {", ".join(KINDS)}.""",
)
@click.argument("kind", required=False, callback=_kind, metavar="KIND", shell_complete=lambda *_: list(KINDS))
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Also the attacks that `auto` is made of.")
def list_(kind: str, name: str | None, everything: bool) -> None:
    from leakgauge.cli.listing import show

    show(kind, name, everything=everything)
