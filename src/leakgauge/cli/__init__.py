"""The command line. Bad input gives one line and exit code 2; what was finished before stays."""

import importlib
import os
import signal
import sys
from typing import Any

# One thread a trial, and no spinning: set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Python puts the working directory first on the path of the processes that workers are forked from.
os.environ["PYTHONSAFEPATH"] = "1"

import click

from leakgauge import __version__
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
        "report": "Write the pages of an audit again",
        "gate": "Exit code of a finished audit, for pipelines",
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
    "Look up": {"list": "What a plan may name: attacks, defences, models, ...", "schema": "JSON Schema of a plan"},
    "From the clone": {"leaderboard": "The table of defences", "reproduce": "Tables and claims of the papers"},
}
"""Commands in --help, each once, beside its neighbours."""

HOMES = dict.fromkeys(("lint", "report", "gate", "frontier"), "audit") | {"between": "captured"}
HOMES |= dict.fromkeys(("inspect", "count", "cohort"), "model")
HOMES |= dict.fromkeys(("list", "schema", "leaderboard", "reproduce"), "listing")
"""Commands and their modules, where these have another name."""


class _Commands(OneLine, click.Group):
    """A command's module is light, and its function imports what takes seconds to load: help waits for none of it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in GROUPS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"leakgauge.cli.{HOMES.get(cmd_name, cmd_name)}")
        return getattr(module, "list_" if cmd_name == "list" else cmd_name)  # type: ignore[no-any-return]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<11}", words) for name, words in commands.items()])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="leakgauge")
def main() -> None:
    """Measures what a federated-learning update reveals about the client's data."""
