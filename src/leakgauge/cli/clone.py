"""What works in a clone alone: `leakgauge leaderboard`, the table of defences, and `leakgauge reproduce`."""

import sys
from pathlib import Path

import click

from leakgauge.cli.options import PATH, SOURCE, to_json, with_workers
from leakgauge.errors import refusing
from leakgauge.registry import own_module

DATA = Path("../shared/data")


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


@click.command()
@click.argument("item", required=False)
@click.option("--quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--kept", is_flag=True, help="Show the kept result and run nothing.")
@to_json("the comparison")
@click.option("--device", default="cpu", show_default=True, help="A torch device to run on.")
@click.option("--data", type=PATH, default=DATA, show_default=True, help="Folder with the data sets as Parquet files.")
def reproduce(item: str | None, **how: object) -> None:
    """Runs ITEM, a table or figure of a paper such as mkor/table2, and prints published numbers beside ours.

    Without ITEM it prints the papers' claims and whether the kept results bear them out; with a paper (mkor) why, and
    its items. Works in a clone of the repository, where results are kept.
    """
    with refusing("reproduce", "is not in this folder", "run it in a clone of the repository", ModuleNotFoundError):
        command = own_module("reproduce.command")
    command.answer(item, **how)
