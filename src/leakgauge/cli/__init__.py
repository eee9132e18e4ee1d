"""The command line. Bad input gives one line and exit code 2; what was finished before stays."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

# One thread a trial, and no spinning: set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Python puts the working directory first on the path of the processes that workers are forked from.
os.environ["PYTHONSAFEPATH"] = "1"

import click

from leakgauge import __version__
from leakgauge.cli.between import between
from leakgauge.cli.captured import captured
from leakgauge.cli.commands import cohort, compare, count, estimate, lint, list_, privacy
from leakgauge.errors import LONGEST, InputError, printable


class OneLine(click.Command):
    """Prints every `InputError`, click's own usage errors and those of the system as one line."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return super().main(*args, **{**kwargs, "standalone_mode": False})
            finally:
                sys.stdout.flush()
        except OSError as error:  # a name that is too long; a full disk behind the standard output
            if error.filename is None:  # Python would try once more as it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            where = "the standard output" if error.filename is None else printable(str(error.filename))[:LONGEST]
            click.echo(f"leakgauge: {where}: {error.strerror}; name another place, or free space", err=True)
        except InputError as error:
            click.echo(f"leakgauge: {error}", err=True)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.ctx.get_help() if error.ctx else str(error))
        except click.ClickException as error:
            click.echo(f"leakgauge: {error.format_message()}", err=True)
        except (click.Abort, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C, while the first is answered
            click.echo("leakgauge: stopped; run the same command to go on where it was", err=True)
            sys.exit(130)
        sys.exit(2)


GROUPS = {
    "Audit a plan": {
        "audit": "Run the attacks of a plan; writes report.html and report.json",
        "lint": "What gives data away before any attack is run",
        "estimate": "Trials and time of a plan, and the clients its gate needs",
        "report": "Write the pages of an audit again",
        "gate": "Exit code of a finished audit, for pipelines",
        "compare": "Two audits of the same examples, side by side",
    },
    "Audit a round of your own": {
        "captured": "How much a captured update is explained, then its audit",
        "between": "Make a round of two checkpoints",
    },
    "Before training": {
        "inspect": "Does a received model look crafted?",
        "count": "Equations against unknowns of one update",
    },
    "Choose a defence": {
        "frontier": "Leakage, accuracy, ε, bytes and time of defences",
        "privacy": "ε of clip and noise; `privacy test` looks for the noise in code",
        "cohort": "Do sums of secure aggregation give single updates away?",
    },
    "Look up": {"list": "What a plan may name: attacks, defences, models, ..."},
    "From the clone": {"reproduce": "Tables and claims of the papers"},
}
"""Commands in --help, each once, beside its neighbours."""


class _Commands(OneLine, click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<9}", words) for name, words in commands.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="leakgauge")
def main() -> None:
    """Measures what a federated-learning update reveals about the client's data."""


for command in (between, captured, count, cohort, compare, estimate, lint, list_, privacy):
    main.add_command(command)


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
@click.option("--memory", metavar="GB", type=float, help="Most for a worker's step; else a share of what is free.")
@click.option("--ray", metavar="ADDRESS", help="Run trials on this Ray cluster instead: host:6379, or auto.")
@click.option("--store", metavar="URL", envvar="LEAKGAUGE_STORE", help="In postgresql+psycopg://user@host/name.")
@click.option("--counts-only", is_flag=True, help="Write no image, and hashes for file names.")
@click.option("--anew", is_flag=True, help="Set older results in the folder aside and start again.")
@click.option("--fail-on-gate", is_flag=True, help="Exit 1 if the plan's gate does not pass.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write the gate's decision as a JUnit file.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Also write it as SARIF, for code scanning.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def audit(
    plan: Path | None,
    output: Path,
    example: bool,
    fail_on_gate: bool,
    junit: Path | None,
    sarif: Path | None,
    **options: Any,
) -> None:
    """Runs an audit and writes report.html and report.json.

    Without PLAN it runs the embedded example on the photos that ship with scikit-image. Killed and run
    again, it goes on where it was; a finished audit does no work.
    """
    from leakgauge.study.grammar import example_text

    if example:
        click.echo(example_text(), nl=False)
        return
    from leakgauge.study.session import run_audit

    asked = fail_on_gate or junit is not None or sarif is not None
    if asked:
        from leakgauge.cli.gate import require_gate

        require_gate(plan)
    run_audit(plan, output, **options)
    if asked:
        from leakgauge.cli.gate import write_decision

        passed = write_decision(output, json_file=None, junit=junit, sarif=sarif, plan=plan).passed
        sys.exit(0 if passed or not fail_on_gate else 1)


@main.command()
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of report.json, and stop.")
@click.option("--pdf", is_flag=True, help="Print the sheet to sign as sheet.pdf, through a browser that is installed.")
@click.option("--by", default="", help="Who audited, on the sheet.")
@click.option("--for", "to", default="", help="For whom, on the sheet.")
def report(folder: Path | None, schema: bool, pdf: bool, by: str, to: str) -> None:
    """Writes report.html, report.json and sheet.html of FOLDER again, from what is stored.

    sheet.html is one page in plain words, for a signature.
    """
    if schema:
        from importlib.resources import files

        click.echo(files("leakgauge.study").joinpath("report.schema.json").read_text(encoding="utf-8"), nl=False)
        return
    if folder is None:
        raise InputError("folder", "is missing", "give the folder of an audit, or --schema")
    from leakgauge.report.sheet import browser, print_pdf
    from leakgauge.study.session import SHEET, write_reports
    from leakgauge.study.store import Store

    for path in (*write_reports(Store.open(folder), by=by, to=to), folder / SHEET):
        click.echo(path)
    if pdf:
        command, target = browser(), (folder / SHEET).with_suffix(".pdf")
        printed = command is not None and print_pdf(folder / SHEET, target, command)
        click.echo(target if printed else f"no browser printed it: open {folder / SHEET} and print it on one A4 page")


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the decision to FILE.")
@click.option("--junit", type=click.Path(path_type=Path), help="Also write it as a JUnit file.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Also write it as SARIF, for code scanning.")
def gate(folder: Path, **options: Any) -> None:
    """Exit 0 if the audit in FOLDER passes its plan's gate, 1 with the reasons if not."""
    from leakgauge.cli.gate import gate_command

    sys.exit(gate_command(folder, **options))


@main.command()
@click.argument("state", type=click.Path(path_type=Path))
@click.option("--model", help="The architecture: a name, package.module:function, or '{name: {parameter: value}}'.")
@click.option("--reference", type=click.Path(path_type=Path), help="A model of the same architecture that you trust.")
@click.option("--previous", type=click.Path(path_type=Path), help="The model of the round before.")
@click.option("--data", help="Your own examples: a folder, folder:PATH, or '{source: …, size: 32}'. Needs --model.")
@click.option("--hash", "hashes", multiple=True, help="A fingerprint that another client saw; may be repeated.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
@click.option("-o", "--output", "page", type=click.Path(path_type=Path), help="Also write an HTML page.")
@click.option("-v", "--verbose", is_flag=True, help="Show every rule's measurement, and what was not judged.")
def inspect(state: Path, **options: Any) -> None:
    """Checks a received model before you train on it: does STATE look crafted to give your data away?

    STATE is a state dict as .safetensors or from torch.save (no code in it is run). Tensors alone are
    enough for most rules; with --model and --data the rules also watch what the model would do with your
    examples, which stay here.

    Exit code 0: no rule reached its limit; 1: one did; 2: the input cannot be used. Prints a fingerprint: clients
    of a round that compare theirs (--hash) notice a server that sends each of them another model.
    """
    from leakgauge.cli.inspect import inspect_command

    sys.exit(inspect_command(state, **options))


@main.command()
@click.argument("item", required=False)
@click.option("--quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--kept", is_flag=True, help="Show the kept result and run nothing.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the comparison to FILE.")
@click.option("--device", default="cpu", show_default=True, help="A torch device to run on.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("../shared/data"),
    show_default=True,
    help="Folder with the data sets as Parquet files.",
)
def reproduce(item: str | None, quick: bool, kept: bool, json_file: Path | None, device: str, data: Path) -> None:
    """Runs ITEM, a table or figure of a paper such as mkor/table2, and prints published numbers beside ours.

    Without ITEM it prints the papers' claims and whether the kept results bear them out; with a paper (mkor) why, and
    its items. Works in a clone of the repository, where results are kept.
    """
    from rich.console import Console

    from leakgauge.registry import own_module

    try:
        command = own_module("reproduce.command")
    except ModuleNotFoundError as error:
        if error.name not in ("reproduce", "reproduce.command"):
            raise
        raise InputError("reproduce", "is not in this folder", "run it in a clone of the repository") from error
    if item is None:
        command.overview(Console())
    elif item in command.PAPERS:
        command.of_one_paper(item, Console())
    elif kept:
        command.kept(item, Console())
    else:
        command.reproduce(item, data=data, quick=quick, json_file=json_file, console=Console(), device=device)


@main.command()
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("frontier-out"),
    show_default=True,
    help="Folder of results; run again to go on.",
)
@click.option("--quick", "is_quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--train", help="Training data, a source as in a plan: parquet:PATH. Needed to measure accuracy.")
@click.option("--test", help="Test data; also what is attacked, unless the plan names other data.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the report to FILE.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default="all cores", help="At a time."
)
@click.option("--ray", metavar="ADDRESS", help="Attack on this Ray cluster instead: host:6379, or auto.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def frontier(plan: Path | None, output: Path, example: bool, **options: Any) -> None:
    """What each defence leaves to an attacker, beside what it costs: accuracy, bytes, time and privacy budget.

    Writes report.html and report.json with a recommendation. Killed and run again, it goes on where it was; a
    finished run does no work.
    """
    from rich.console import Console

    from leakgauge.cli.frontier import example_text, frontier_command

    if example:
        click.echo(example_text(), nl=False)
        return
    frontier_command(plan, output, **options, console=Console())


if __name__ == "__main__":
    main()
