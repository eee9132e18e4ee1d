"""`leakgauge leaderboard`: rows of the table of defences, one more for a defence of your own, and the page."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakgauge.cli.options import PATH, SOURCE, SPEC, with_workers
from leakgauge.errors import require

if TYPE_CHECKING:
    from leakgauge.leaderboard.board import Board, BoardRow

PAGE = "index.html"


@click.group()
def leaderboard() -> None:
    """The table of defences: what each leaves to an attacker in fixed scenes.

    The board is a folder with scenes, defences, rules and rows; that of the project is `leaderboard` in a clone.
    """


def _board(folder: Path) -> Board:
    from leakgauge.leaderboard.board import Board

    hint = "give --board: the folder leaderboard of a clone"
    require((folder / "scenes.yaml").is_file(), "--board", f"{folder} holds no scenes.yaml", hint)
    return Board(folder.resolve())


FOLDER = click.option(
    "--board", "folder", type=PATH, default=Path("leaderboard"), show_default=True, help="Its folder."
)
SCENES = click.option("--scene", "scenes", multiple=True, help="Only this scene; several times for several.")


@leaderboard.command()
@click.argument("defense", type=SPEC)
@FOLDER
@SCENES
@click.option("--train", type=SOURCE, help="Training data, to measure what the defence costs in accuracy.")
@click.option("--test", type=SOURCE, help="Test data for the same.")
@with_workers("Trials at a time, one thread each.")
def add(defense: Any, folder: Path, scenes: tuple[str, ...], train: Any, test: Any, workers: int) -> None:
    """Measures DEFENSE in every scene, and says where it stands.

    DEFENSE is your_package.module:Class, or as in a plan: '{your_package.module:Class: {strength: 2}}'. Killed and run
    again, it goes on with the row that it was at.
    """
    from leakgauge.leaderboard.board import Asked, ranked
    from leakgauge.leaderboard.measure import accuracy_lost, measure
    from leakgauge.resolve import resolve_defense

    board, label = _board(folder), resolve_defense(defense, "defense").label
    cost = accuracy_lost(defense, train, test) if train is not None and test is not None else None
    for scene in board.chosen(scenes):
        measure(board, scene, [Asked(defense)], workers, lambda _: None)
        row = board.row(scene, label)
        assert row is not None
        if cost is not None:
            board.keep(replace(row, accuracy=cost))
        places = [one.label for one in ranked([other for other in board.rows() if other.scene == scene.name])]
        place = f"stands {places.index(label) + 1} of {len(places)}" if label in places else "has no rank"
        click.echo(f"{scene.name}: {label} {place}; {_words(row)}")
    click.echo(write(board))


def _words(row: BoardRow) -> str:
    if row.refused:
        return f"does not apply: {row.refused}"
    naive, adapted = (f"{cell.count} of {cell.n}" if cell.stands else f"no power ({cell.said})" for cell in row.cells)
    return f"naive {naive}, adapted {adapted}" + (f"; flags: {', '.join(row.flags)}" if row.flags else "")


@leaderboard.command("run")
@FOLDER
@SCENES
@click.option("--hours", type=float, default=float("inf"), help="Begin no further row after so many.")
@click.option("--plan", "only_plan", is_flag=True, help="Print what is left, in core hours, and stop.")
@with_workers("Trials at a time, one thread each.")
def run_(folder: Path, scenes: tuple[str, ...], hours: float, only_plan: bool, workers: int) -> None:
    """Measures the board's rows that are not there yet, the cheapest scene first; writes the page."""
    from leakgauge.leaderboard.board import NONE
    from leakgauge.leaderboard.measure import measure
    from leakgauge.resolve import resolve_defense

    board, until = _board(folder), time.monotonic() + 3600 * hours
    for scene in board.chosen(scenes):
        labels = [NONE, *(resolve_defense(one.defense, "defense").label for one in board.asked)]
        left = [label for label in labels if board.row(scene, label) is None]
        needed = len(left) * 2 * scene.undefended.data.batches * scene.seconds / 3600
        click.echo(f"{scene.name}: {len(labels) - len(left)} of {len(labels)} rows, {needed:.1f} core hours left")
        if left and not only_plan:
            measure(board, scene, board.asked, workers, lambda row: click.echo(f"  {row.label}"), until)
            write(board)


@leaderboard.command()
@FOLDER
def page(folder: Path) -> None:
    """Writes index.html from the rows."""
    click.echo(write(_board(folder)))


def write(board: Board) -> Path:
    """The page."""
    from leakgauge.files import write_whole
    from leakgauge.leaderboard.page import render

    return write_whole(board.folder / PAGE, render(board))
