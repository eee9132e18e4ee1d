"""Qian & Hansen's items: every line of every measure runs, and fills its published cells."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.comparison import beside  # noqa: E402
from reproduce.item import Inputs, Item  # noqa: E402
from reproduce.qian_hansen import items as qian_hansen  # noqa: E402
from reproduce.qian_hansen import trials as qian_hansen_trials  # noqa: E402

from leakgauge.observation import Attack  # noqa: E402
from leakgauge.task import Batch, Task  # noqa: E402

ITEMS = [item for item in qian_hansen.ITEMS if item.measure is not None and item.name != "ranks"]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_runs_and_fills_its_cells(item: Item, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attacks of three evaluations: the numbers mean nothing, but every line of the measure has run."""
    for package in ("pywt", "skimage"):
        pytest.importorskip(package)
    whole = qian_hansen_trials.score

    def quickly(task: Task, batch: Batch, attack: Attack, seed: int, budget: int | None = None):
        del budget
        return whole(task, batch, attack, seed, 3)

    monkeypatch.setattr(qian_hansen_trials, "score", quickly)
    assert item.measure is not None
    rows = list(item.measure(Inputs(shared / "data", True, lambda _: None)))
    lines = beside(item, [row.record() for row in rows])
    measured = {(x["setting"], x["attack"], x["metric"]) for x in lines if x["measured"] is not None}
    assert len(measured) == len(rows), "two rows under one name"
    assert {cell.key for cell in item.cells} <= measured
    assert item.needs


def test_what_an_interrupted_run_has_kept_is_not_attacked_again(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = next(item for item in ITEMS if item.name == "figure5b")
    asked: list[int] = []

    def counted(*given, **also):
        asked.append(1)
        return qian_hansen_trials.Score([1.0] * 4, [2.0] * 4, 1, 0.1)

    monkeypatch.setattr(qian_hansen_trials, "score", counted)
    assert item.measure is not None
    quiet = Inputs(shared / "data", True, lambda _: None)
    rows = list(item.measure(quiet))
    assert len(asked) == 4
    resumed = dataclasses.replace(quiet, done=lambda setting, _: [row for row in rows if row.setting == setting])
    assert list(item.measure(resumed)) == rows
    assert len(asked) == 4
