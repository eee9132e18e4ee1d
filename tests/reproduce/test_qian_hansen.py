"""Qian & Hansen's items: every line of every measure runs, and fills its published cells."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.comparison import beside  # noqa: E402
from reproduce.film import Film  # noqa: E402
from reproduce.item import Inputs, Item  # noqa: E402
from reproduce.qian_hansen import items as qian_hansen  # noqa: E402
from reproduce.qian_hansen import trials as qian_hansen_trials  # noqa: E402
from reproduce.qian_hansen.networks import one_hidden_layer  # noqa: E402

from leakgauge.attacks.matching import Pixels  # noqa: E402
from leakgauge.attacks.recipes import dlg  # noqa: E402
from leakgauge.observation import Attack  # noqa: E402
from leakgauge.task import Batch, DataSpec, Task  # noqa: E402

ITEMS = [item for item in qian_hansen.ITEMS if item.measure is not None and item.name != "ranks"]


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_runs_and_fills_its_cells(item: Item, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attacks of three evaluations: the numbers mean nothing, but every line of the measure has run."""
    for package in ("pywt", "skimage"):
        pytest.importorskip(package)
    whole = qian_hansen_trials.score

    def quickly(task: Task, batch: Batch, attack: Attack, seed: int, budget: int | None = None, **further):
        del budget
        return whole(task, batch, attack, seed, 3, **further)

    monkeypatch.setattr(qian_hansen_trials, "score", quickly)
    assert item.measure is not None
    rows = list(item.measure(Inputs(shared / "data", True, lambda _: None)))
    lines = beside(item, [row.record() for row in rows])
    measured = {(x["setting"], x["attack"], x["metric"]) for x in lines if x["measured"] is not None}
    assert len(measured) == len(rows), "two rows under one name"
    assert {cell.key for cell in item.cells} <= measured
    assert item.needs


def test_the_error_over_a_search_is_the_area_under_its_curve() -> None:
    """Pictures at 1, 2 and 4 of four evaluations, the third missing and the last not finite."""
    batch = Batch(torch.tensor([[0.25, 0.25]]), torch.tensor([0]))
    film = Film(Pixels(), frozenset({1, 2, 3, 4}))
    film.frames.update({1: torch.tensor([[0.75, 0.25]]), 2: torch.tensor([[0.25, 0.25]])})
    film.frames[4] = torch.tensor([[float("nan"), 0.0]])
    assert qian_hansen_trials.over_the_search(film, batch) == pytest.approx([(0.5 + 0.0 + 0.0 + 0.5) / 4])
    assert qian_hansen_trials.over_the_search(Film(Pixels(), frozenset({1})), batch) == pytest.approx([0.5])


def test_a_watched_search_is_the_same_search() -> None:
    data = DataSpec((4,), 3)
    task = qian_hansen_trials.network(lambda: one_hidden_layer(classes=3, shape=(4,), units=4), data, 0)
    batch = Batch(torch.tensor([[0.1, 0.9, 0.4, 0.6]]).double(), torch.tensor([1]))
    plain = qian_hansen_trials.score(task, batch, dlg(restarts=1, steps=40), 0)
    watched = qian_hansen_trials.score(task, batch, dlg(restarts=1, steps=40), 0, watch=40)
    assert (watched.l1, watched.evaluations) == (plain.l1, plain.evaluations)
    assert watched.curve[0] > watched.l1[0] >= 0
    assert plain.curve == []


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
