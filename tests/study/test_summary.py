"""What is held of each trial is enough: verdict and page of a stream are those of the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.study.document import summary, verdict_of, write_json
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import run
from leakgauge.study.store import Store
from study.plans import document, tiny
from study.trials import LEAKY, POWER, trial

GATE = GateConfig.model_validate({"identified": {"max": 0.1}, "psnr": {"worst": 18}, "label_f1": {"max": 0.5}})
VALUES = st.one_of(st.none(), st.floats(-1e3, 1e3, allow_subnormal=False))


@given(st.lists(VALUES, max_size=12), st.lists(st.floats(0, 9, allow_subnormal=False), max_size=4), st.booleans())
def test_the_verdict_on_what_is_held_is_that_on_everything(
    trace: list[float | None], restarts: list[float], found: bool
) -> None:
    steps = list(enumerate(trace))
    rows: list[Trial] = [
        *POWER,
        *LEAKY,
        *(trial(i, 12.0 + i, defense="d", trace=steps, restarts=restarts, f1=0.4, identified=found) for i in range(6)),
        trial(6, None, defense="d", status="non_finite"),
    ]
    rows[0] = replace(rows[0], message="a remark")
    whole = verdict(rows, GATE)
    assert verdict([row.judged for row in rows], GATE) == whole


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    plan = tiny(data={"source": "samples", "size": 16, "batches": 1}, attacks=["closed-form"], defenses=["none"])
    return run(resolve_plan(plan), tmp_path_factory.mktemp("summary"))


def _written(store: Store) -> str:
    judged = verdict_of(store)
    return write_json(store, summary(store, judged), judged).read_text()


def test_a_report_written_piece_by_piece_is_the_document(store: Store) -> None:
    text = _written(store)
    assert text == json.dumps(document(store), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def test_a_report_without_trials_is_json(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "each", lambda: iter(()))
    assert json.loads(_written(store))["trials"] == []


def test_pictures_are_read_when_they_are_asked_for(store: Store) -> None:
    pictures = store.pictures()
    assert list(pictures) == [r["id"] for r in list(store.each())]
    assert len(pictures) == len(list(pictures)) > 0
    assert all(p.original.startswith(b"\x89PNG") for found in pictures.values() for p in found if p.original)
    with pytest.raises(KeyError):
        pictures["no such trial"]
