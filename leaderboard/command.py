"""What `leakgauge leaderboard` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console

from leaderboard.board import NONE, Asked, Board, BoardRow, Scene, ranked
from leaderboard.measure import accuracy_lost, measure, versions
from leaderboard.page import render
from leaderboard.scored import external
from leakgauge.cli.options import SPEC
from leakgauge.defenses import Defense
from leakgauge.errors import require
from leakgauge.files import write_whole
from leakgauge.resolve import resolve_defense

PAGE = "index.html"
Say = Callable[[str], None]


def add(folder: Path, *, what: str | None, scenes: Sequence[str], accuracy: Any, say: Say, **how: Any) -> None:
    """Measures a defence, as a plan writes it, in every scene, and says where it stands."""
    board, defense = Board(folder), SPEC.convert(given(what, "a defence to add"), None, None)
    named = resolve_defense(defense, "defense")
    require(type(named.value) is not Defense, "what", f"{named.label} is leakgauge's base class", "name your own")
    label = named.label
    chosen = board.chosen(scenes)
    needed = 60 * sum(hours(board, scene, [label]) for scene in chosen)
    say(f"{len(chosen)} scene{'s' * (len(chosen) > 1)}, about {needed:.1f} core minutes")
    cost = accuracy_lost(defense, *accuracy) if accuracy else None
    for scene in chosen:
        measure(board, scene, [Asked(defense)], how["workers"], lambda _: None)
        row = board.row(scene, label)
        if row is None:
            say(f"{scene.name}: not run")
            continue
        if cost is not None:
            board.keep(replace(row, accuracy=cost))
        say(as_wide_as_the_console(standing(board, row)))
    say(str(write(board)))


def standing(board: Board, row: BoardRow) -> str:
    """A row in a line, with what is counted and what it would be without a defence, and a line for each flag and for
    each attacker that is not counted."""
    if row.refused:
        return f"{row.scene}: {row.label} does not apply: {row.refused}"
    places = [one.label for one in ranked([other for other in board.rows() if other.scene == row.scene])]
    place = "has no rank" if row.worst else "has no rank, for no attack tells here whether it protects"
    if row.label in places:
        place = f"stands {places.index(row.label) + 1} of {len(places)} ranked here (1 leaks least)"
    place += " (unreliable)" * (row.worst is not None and not row.sure)
    none = board.row(board.scenes[row.scene], NONE)
    named = dict(zip(("naive", "adapted"), row.cells, strict=True)) | ({NONE: none.worst} if none else {})
    counts = ", ".join(
        f"{name} {f'{cell.count} of {cell.n}' if cell.stands else 'not counted'}"
        + f" ({cell.certified} proved)" * (cell.stands and cell.certified > 0)
        for name, cell in named.items()
        if cell is not None
    )
    flags = (f"  flag, {name}: {why}" for name, cell in zip(named, row.cells, strict=False) for why in cell.reasons)
    missing = (f"  not counted, {name}: {cell.said}" for name, cell in named.items() if cell and not cell.stands)
    return "\n".join([f"{row.scene}: {row.label} {place}; examples singled out: {counts}", *missing, *flags])


def as_wide_as_the_console(lines: str) -> str:
    """Each line in several, as `leakgauge gate` prints its reasons: names stay whole, what follows a line is set in."""
    width, whole = Console().width, {"break_long_words": False, "break_on_hyphens": False}
    wrapped = (wrap(line, width, subsequent_indent="    ", **whole) for line in lines.splitlines())
    return "\n".join(part for parts in wrapped for part in parts)


def given(what: str | None, kind: str) -> str:
    require(what is not None, "what", "is missing", f"give {kind}")
    return what or ""


def hours(board: Board, scene: Scene, labels: Sequence[str]) -> float:
    """Of one core, about, for those of the rows, and the one without a defence, that are not there yet."""
    left = [label for label in {NONE, *labels} if board.row(scene, label) is None]
    return len(left) * 2 * scene.undefended.data.batches * scene.seconds / 3600


def run(folder: Path, *, scenes: Sequence[str], only_plan: bool, say: Say, **how: Any) -> None:
    """Measures the board's rows that are not there yet, the cheapest scene first; writes the page."""
    board = Board(folder)
    for scene in board.chosen(scenes):
        labels = [NONE, *(resolve_defense(one.defense, "defense").label for one in board.asked)]
        left = [label for label in labels if board.row(scene, label) is None]
        needed = hours(board, scene, labels)
        say(f"{scene.name}: {len(labels) - len(left)} of {len(labels)} rows, {needed:.1f} core hours left")
        there = filter(None, (board.row(scene, label) for label in labels))
        if older := [row.label for row in there if row.versions.get("attacks") != versions()["attacks"]]:
            say(f"  {len(older)} of older attacks, which stay until their files are removed: {', '.join(older)}")
        if left and not only_plan:
            measure(board, scene, board.asked, how["workers"], lambda row: say(f"  {row.label}"))
    if not only_plan:
        say(str(write(board)))


def score(folder: Path, *, what: str | None, say: Say, **_: Any) -> None:
    """Scores an external entry, and says where it stands."""
    board = Board(folder)
    say(as_wide_as_the_console(standing(board, external(board, Path(given(what, "the folder of an entry"))))))
    say(str(write(board)))


def page(folder: Path, *, say: Say, **_: Any) -> None:
    """Writes the page, from the rows."""
    say(str(write(Board(folder))))


def write(board: Board) -> Path:
    require((board.folder / "rows").is_dir(), "rows", "are not there", "leakgauge leaderboard run")
    return write_whole(board.folder / PAGE, render(board))
