"""`leakgauge leaderboard`: the table of defences, in a clone of the repository or beside one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from leakgauge.cli.options import PATH, SOURCE, with_workers
from leakgauge.errors import refusing
from leakgauge.registry import own_module


@click.command()
@click.argument("action", type=click.Choice(["add", "run", "score", "page"]))
@click.argument("what", required=False)
@click.option("--board", type=PATH, default=Path("leaderboard"), show_default=True, help="The folder of that name.")
@click.option("--scene", "scenes", multiple=True, help="Only this scene; several times for several.")
@click.option("--plan", "only_plan", is_flag=True, help="With run: print what is left, in core hours, and stop.")
@click.option("--accuracy", type=SOURCE, nargs=2, help="With add: training and test data to measure its cost with.")
@with_workers("Trials at a time, one thread each.")
def leaderboard(action: str, board: Path, **how: object) -> None:
    """The table of defences: what each leaves to an attacker in fixed scenes. All goes on where it was stopped.

    `add WHAT` measures a defence, your_package.module:Class or as in a plan, and says where it stands; `run` rows that
    are not there yet. `score WHAT` scores somebody else's entry, a folder. `page` writes index.html.
    """
    sys.path.append(str(board.resolve().parent))
    with refusing("--board", "is not here", "give the folder leaderboard of a clone", ModuleNotFoundError):
        command = own_module("leaderboard.command")
    getattr(command, action)(board.resolve(), say=click.echo, **how)
