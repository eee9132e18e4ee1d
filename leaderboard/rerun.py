"""``python -m leaderboard.rerun``: rows drawn by a seed, measured again in a copy of the board, beside what was kept.

The copy lacks the drawn rows at first, and goes on where it was left. A share of examples singled out should lie within
the interval that was kept of it; that is asked of each attacker, as is whether the count may be read at all.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from leaderboard.board import EXTERNAL, NONE, PRIOR, Asked, Board, BoardRow
from leaderboard.measure import measure, versions


def drawn(board: Board, seed: int, count: int) -> list[BoardRow]:
    """So many of the rows that our attackers gave a figure, or all there are."""
    own = [row for row in board.rows() if row.kind not in (PRIOR, EXTERNAL) and not row.refused]
    return Random(seed).sample(own, min(count, len(own)))


def copied(board: Board, to: Path, without: Sequence[BoardRow]) -> Board:
    """The board in another folder, without those rows; one that is there already is taken as it is."""
    if not to.exists():
        shutil.copytree(board.folder, to, ignore=shutil.ignore_patterns("__pycache__"))
        for row in without:
            Board(to).place(row.scene, row.label).unlink()
    return Board(to)


def again(board: Board, row: BoardRow, workers: int) -> BoardRow | None:
    """The same row as it is measured now; `None` where its trials gave none."""
    scene = board.scenes[row.scene]
    asked = [] if row.kind == NONE else [Asked(row.defense, row.reported)]
    measure(board, scene, asked, workers, lambda _: None)
    return board.row(scene, row.label)


def outside(kept: BoardRow, now: BoardRow) -> Iterator[str]:
    """Figures that the kept intervals do not hold, in words."""
    for name, before, after in zip(("naive", "adapted"), kept.cells, now.cells, strict=True):
        share = after.count / max(after.n, 1)
        if before.stands != after.stands:
            yield f"{name}: counted {before.stands} before, {after.stands} now ({after.said or before.said})"
        elif before.stands and not before.low <= share <= before.high:
            ends = f"[{before.low:.2f}, {before.high:.2f}]"
            yield f"{name}: {after.count} of {after.n} singled out, kept {before.count} of {before.n} {ends}"


def main(words: Sequence[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--board", type=Path, default=Path(__file__).parent)
    asked.add_argument("--copy", type=Path, required=True, help="where rows are measured again")
    asked.add_argument("--seed", type=int, required=True)
    asked.add_argument("--rows", type=int, default=20)
    asked.add_argument("--workers", type=int, default=1)
    given = asked.parse_args(words)
    board = Board(given.board)
    rows = drawn(board, given.seed, given.rows)
    board.chosen(sorted({row.scene for row in rows}))
    copy, digest, off = copied(board, given.copy, rows), versions()["attacks"], 0
    for row in sorted(rows, key=lambda row: board.scenes[row.scene].seconds):
        now = again(copy, row, given.workers)
        found = ["no row came of it"] if now is None else list(outside(row, now))
        older = "" if row.versions.get("attacks") == digest else f" (kept of attacks {row.versions.get('attacks')})"
        print(f"{row.scene}: {row.label}{older}: {'; '.join(found) or 'within'}", flush=True)  # noqa: T201
        off += bool(found)
    print(f"{off} of {len(rows)} rows have a figure outside its interval; attacks {digest}")  # noqa: T201


if __name__ == "__main__":
    main()
