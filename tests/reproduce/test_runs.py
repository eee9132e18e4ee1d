"""A run of an item is kept row by row, and goes on where it stopped."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.rows import Row  # noqa: E402
from reproduce.runs import Run, latest_run  # noqa: E402


def row(setting: str, value: float = 1.0) -> Row:
    return Row(
        paper="p", row="t", setting=setting, attack="a", metric="m", claimed=None, per_image=[[value, 3.0]],
        seeds=[0, 1], gradient_evaluations=1, seconds=0.1,
    )  # fmt: skip


from reproduce import rows, runs  # noqa: E402


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stamps = (f"20260101T0000{n:02}" for n in itertools.count())
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(runs.time, "strftime", lambda *_: next(stamps))
    return tmp_path


def kept(quick: bool, *settings: str, finish: bool = True) -> Run:
    run = Run.begin("p", "t", quick=quick)
    run.keep([row(setting) for setting in settings])
    if finish:
        run.finish()
    return run


def latest() -> list[str]:
    return [r["setting"] for r in latest_run("p", "t")]


def test_the_newest_full_run_wins_and_an_interrupted_one_stands_beside_the_quick_one() -> None:
    assert latest() == []
    kept(True, "small", finish=False)
    assert latest() == ["small"]
    kept(True, "quick", "both")
    kept(False, "both", "half", finish=False)
    assert latest() == ["small", "quick", "both", "half"]
    kept(False, "whole")
    kept(True, "newer but quick")
    assert latest() == ["both", "half", "whole"]
    kept(False, "whole", "later", finish=False)
    assert latest() == ["both", "half", "whole", "later"]


def test_several_interrupted_runs_stand_together_and_the_newest_has_the_last_word(results: Path) -> None:
    """The newest alone stood, and quick rows in place of those that an older one had in full."""
    old = kept(False, "a", "b", finish=False)
    hidden = results / "aside"
    old.path.rename(hidden)
    new = Run.begin("p", "t", quick=False)
    new.keep([row("a", 7.0)])
    hidden.rename(old.path)
    assert latest() == ["a", "b"]
    assert latest_run("p", "t")[0]["per_image"][0][0] == 7.0


def test_rows_of_a_full_run_go_before_the_quick_ones_of_the_same_name() -> None:
    quick, full = Run.begin("p", "t", quick=True), Run.begin("p", "t", quick=False)
    quick.keep([row("a", 1.0)])
    quick.finish()
    full.keep([row("a", 5.0)])
    assert [r["per_image"][0][0] for r in latest_run("p", "t")] == [5.0]


def test_an_interrupted_run_goes_on_and_a_complete_one_is_never_touched() -> None:
    first = kept(False, "a", finish=False)
    again = Run.begin("p", "t", quick=False)
    assert again.path == first.path
    assert again.of("a", "a") == [row("a")]
    assert again.of("b", "a") == []
    again.add([row("a", 9.0)])
    assert again.of("a", "a") == [row("a")]
    again.finish()
    text = first.path.read_text()
    new = Run.begin("p", "t", quick=False)
    assert new.path != first.path
    assert new.records == []
    assert first.path.read_text() == text


def test_two_runs_never_share_a_file(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kept(False, "a")
    monkeypatch.setattr(runs.time, "strftime", lambda *_: run.path.stem.removeprefix("p-t-"))
    with pytest.raises(FileExistsError):
        Run.begin("p", "t", quick=False)
