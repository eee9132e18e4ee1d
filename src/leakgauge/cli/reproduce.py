"""`leakgauge reproduce`: papers' tables beside ours, in a clone of the repository."""

from __future__ import annotations

from pathlib import Path

import click

from leakgauge.cli.options import PATH, to_json
from leakgauge.errors import InputError


@click.command()
@click.argument("item", required=False)
@click.option("--quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--kept", is_flag=True, help="Show the kept result and run nothing.")
@to_json("the comparison")
@click.option("--device", default="cpu", show_default=True, help="A torch device to run on.")
@click.option(
    "--data",
    type=PATH,
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
