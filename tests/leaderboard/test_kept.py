"""The board of this repository: its scenes are those of its digests, and its page is that of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from leaderboard.board import NONE, Board, ranked

from leakgauge.registry import DEFENSES
from leakgauge.resolve import resolve_defense

FOLDER = Path(__file__).parents[2] / "leaderboard"


@pytest.fixture(scope="module")
def board() -> Board:
    return Board(FOLDER)


def test_scenes_are_those_of_their_digests(board: Board) -> None:
    assert len(board.chosen(())) == 7


def test_every_registered_defence_is_asked_at_two_strengths(board: Board) -> None:
    names = [resolve_defense(one.defense, "defense").name for one in board.asked]
    assert {entry.name: names.count(entry.name) for entry in DEFENSES if entry.name != "none"} == {
        entry.name: 2 for entry in DEFENSES if entry.name != "none"
    }


def test_kept_rows_can_be_read_and_stand_beside_one_without_a_defence(board: Board) -> None:
    rows = list(board.rows())
    assert rows
    assert len(rows) == len(list((FOLDER / "rows").glob("*/*.json"))), "rows of another digest"
    assert {row.scene for row in rows if row.kind == NONE} == {row.scene for row in rows}
    for row in rows:
        assert row.refused or all(cell.stands or cell.said for cell in row.cells)


def test_the_page_is_that_of_the_rows(board: Board) -> None:
    from leaderboard.page import render

    assert (FOLDER / "index.html").read_text(encoding="utf-8") == render(board)


def test_of_defences_that_look_strong_to_a_naive_attacker_the_weakest_stands_last(board: Board) -> None:
    """What the page on the table says of Soteria: nothing comes back naively, everything once the attacker knows it."""
    rows = [row for row in board.rows() if row.scene == "lenet"]
    (row,) = (row for row in rows if row.label == "soteria(prune=30.0)")
    assert row.naive is not None
    assert row.adapted is not None
    assert (row.naive.recovered, row.adapted.recovered, row.adapted.n) == (0, 8, 8)
    assert (f"{row.naive.highest:.0f}", f"{row.adapted.highest:.0f}") == ("16", "34")
    assert (ranked(rows).index(row) + 1, len(ranked(rows))) == (28, 34)
    assert ranked([row for row in rows if row.naive is not None and row.naive.recovered == 0])[-1] == row
