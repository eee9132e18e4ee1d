"""The board as one static page, made of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leaderboard.board import EXTERNAL, NONE, PRIOR, Board, BoardRow, Scene, ranked
from leakgauge.report.html import page
from leakgauge.resolve import resolve_defense


@dataclass(frozen=True)
class BoardLine:
    """A row as the page shows it: without one where it was not run, without a rank where nothing can be ranked."""

    scene: Scene
    label: str
    row: BoardRow | None
    rank: int | None
    of: int

    @property
    def order(self) -> tuple[int, int]:
        row = self.row
        if row is not None and row.kind in (NONE, PRIOR):
            return 0, int(row.kind == PRIOR)
        return (1, self.rank) if self.rank else (2 if row is not None else 3, 0)


def lines_of(scene: Scene, rows: Sequence[BoardRow], labels: Sequence[str]) -> list[BoardLine]:
    """A scene's rows and those that nobody ran, from the least that leaks on."""
    places = {row.label: i for i, row in enumerate(ranked(rows), 1)}
    by = {row.label: row for row in rows}
    names = dict.fromkeys([NONE, PRIOR, *labels, *by])
    found = [BoardLine(scene, name, by.get(name), places.get(name), len(places)) for name in names]
    return sorted(found, key=lambda line: line.order)


def render(board: Board) -> str:
    """The page as one string of HTML. Equal rows give equal bytes."""
    asked, rows = [resolve_defense(one.defense, "defense").label for one in board.asked], list(board.rows())
    scenes = list(board.scenes.values())
    lines = {scene.name: lines_of(scene, [r for r in rows if r.scene == scene.name], asked) for scene in scenes}
    labels = [*dict.fromkeys([NONE, PRIOR, *asked, *(row.label for row in rows)])]
    by = {(line.scene.name, line.label): line for each in lines.values() for line in each}
    shown = {"scenes": scenes, "lines": lines, "labels": labels, "by": by, "external": EXTERNAL}
    return page("report", "leaderboard.html.j2", {}, **shown)
