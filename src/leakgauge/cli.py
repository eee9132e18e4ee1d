"""The command line. Bad input gives one line and exit code 2; what was finished before stays."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# One thread a trial, and no spinning: set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import click

from leakgauge.errors import InputError
from leakgauge.version import __version__

KINDS = (
    "attacks",
    "defenses",
    "metrics",
    "models",
    "data",
    "clients",
    "servers",
    "objectives",
    "priors",
    "canvases",
    "minimisers",
    "labels",
    "taps",
    "heads",
    "losses",
    "rules",
)


class _OneLine(click.Group):
    """Prints every `InputError`, and click's own usage errors, as one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **{**kwargs, "standalone_mode": False})
        except InputError as error:
            click.echo(f"leakgauge: {error}", err=True)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else str(error))
        except click.ClickException as error:
            click.echo(f"leakgauge: {error.format_message()}", err=True)
        except click.Abort:
            click.echo("leakgauge: stopped; run the same command to go on where it was", err=True)
            sys.exit(130)
        sys.exit(2)


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="leakgauge")
def main() -> None:
    """Measures what a federated-learning update reveals about the client's data."""
    sys.path.insert(0, os.getcwd())  # a plan may name modules of the folder it is run from


@main.command()
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("audit-out"),
    show_default=True,
    help="Folder of results; run again to go on.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="Trials at a time, one thread each.",
)
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--counts-only", is_flag=True, help="Never write an image, neither an original nor a reconstruction.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def audit(plan: Path | None, output: Path, workers: int, device: str, counts_only: bool, example: bool) -> None:
    """Runs an audit and writes report.html and report.json.

    Without PLAN it runs the embedded example on the photos that ship with scikit-image. Killed and run
    again, it goes on where it was; a finished audit does no work.
    """
    from leakgauge.audit.example import example_text

    if example:
        click.echo(example_text(), nl=False)
        return
    from leakgauge.audit.session import run_audit

    run_audit(plan, output, workers=workers, device=device, counts_only=counts_only)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def report(folder: Path) -> None:
    """Writes report.html and report.json of FOLDER again, from what is stored."""
    from leakgauge.audit.session import write_reports
    from leakgauge.audit.store import Store

    for path in write_reports(Store.open(folder)):
        click.echo(path)


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
def gate(folder: Path) -> None:
    """Exit 0 if the audit in FOLDER passes its plan's gate, 1 with the reasons if not."""
    from leakgauge.audit.document import document
    from leakgauge.audit.session import missing_trials
    from leakgauge.audit.store import Store

    store = Store.open(folder)
    left = missing_trials(store)
    result = document(store)["verdict"]["gate"]
    if result["passed"] is None:
        raise InputError("gate", "the plan has none", "add e.g. `gate: {identified: {max: 0.05}}` to it")
    reasons = result["reasons"] + ([f"unfinished: {left} trials have not run"] if left else [])
    for reason in reasons:
        click.echo(reason)
    click.echo("gate failed" if reasons else "gate passed")
    sys.exit(1 if reasons else 0)


@main.command("list")
@click.argument("kind", type=click.Choice(KINDS))
def list_(kind: str) -> None:
    """Names that a plan may use, with their parameters and what each needs."""
    from leakgauge.audit.listing import show

    show(kind)


if __name__ == "__main__":
    main()
