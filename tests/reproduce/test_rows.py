"""Results are data: append-only, and the docs page is made from them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce import rows, table  # noqa: E402


def row(**changes) -> rows.Row:
    plain = {
        "paper": "p",
        "row": "r",
        "setting": "s",
        "attack": "a",
        "metric": "m",
        "claimed": None,
        "per_image": [[1.0, 3.0], [5.0, 7.0], [3.0, 5.0]],
        "seeds": [0, 1],
        "gradient_evaluations": 1,
        "seconds": 0.1,
    }
    return rows.Row(**(plain | changes))


def test_a_row_summarises_images_and_not_seeds() -> None:
    measured = row().record()["measured"]
    assert measured["mean"] == 4
    assert measured["by_seed"] == [3, 5]
    assert measured["std"] == 2
    assert measured["low"] <= 4 <= measured["high"]


def test_one_image_and_several_seeds_have_the_spread_of_the_seeds() -> None:
    measured = row(per_image=[[1.0, 3.0, 8.0]], seeds=[0, 1, 2]).record()["measured"]
    assert measured["over"] == "seeds"
    assert measured["std"] == pytest.approx(3.606)
    assert measured["low"] < 4 < measured["high"]
    alone = row(per_image=[[1.0]], seeds=[0]).record()["measured"]
    assert alone["low"] is alone["high"] is alone["std"] is None


def test_a_row_says_which_commit_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "commit", lambda: "abc123")
    assert row().record()["environment"]["commit"] == "abc123"


def test_results_are_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    first = row().save()
    text = first.read_text()
    monkeypatch.setattr(rows.time, "strftime", lambda *_: first.stem.removeprefix("p-r-"))
    with pytest.raises(FileExistsError):
        row().save()
    assert first.read_text() == text


def test_the_page_of_the_docs_has_every_claim_row_and_item_once() -> None:
    page = table.page()
    assert all(page.count(table.line(record)) == 1 for record in table.newest())
    assert all(page.count(table.section(item)) == 1 for item in table.items().values())
    assert all(page.count(line) >= 1 for line in table.markdown())
    assert not page.startswith("# ")  # the title is in the file that includes it
