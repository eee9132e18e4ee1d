"""What a newcomer meets in the first hour: each message names the key that mends it, and nothing runs without end."""

from __future__ import annotations

import json
import pickle
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from leakgauge import workers
from leakgauge.cli.audit import Judged, write_junit, write_sarif
from leakgauge.data.extras import Parquet
from leakgauge.data.pictures import Folder
from leakgauge.errors import InputError
from leakgauge.privacy.guarantee import in_words
from leakgauge.registry import CLIENTS
from leakgauge.resolve import resolve, resolve_defense
from leakgauge.study.grammar import GateConfig, parse
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.lint import of_data, of_gate
from leakgauge.study.plan import resolve_plan
from study.trials import POWER, trial


@pytest.mark.parametrize(("key", "example"), [("seeds", "[0]"), ("attacks", "[auto]"), ("knows", "[example_count]")])
def test_a_list_is_shown_as_its_key_has_it(key: str, example: str) -> None:
    with pytest.raises(InputError, match=f"{key}.*") as caught:
        parse({key: 3})
    assert example in str(caught.value)


@pytest.mark.parametrize(("options", "key"), [({}, "sigma"), ({"sigma": 1.0, "relative": 1.0}, "sigma and relative")])
def test_noise_names_keys_that_there_are(options: dict[str, float], key: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_defense({"noise": options}, "defenses[0]")
    assert f"{key}: " in str(caught.value)
    assert "scale" not in str(caught.value)


def test_an_optimiser_under_fedavg_is_sent_where_it_belongs() -> None:
    with pytest.raises(InputError, match="local-training takes it"):
        resolve(CLIENTS, {"fedavg": {"optimiser": "adam"}}, "clients[0]")


def test_one_epsilon_has_one_name() -> None:
    assert in_words(float("inf")) == in_words(2.21e4) == "beyond use (over 1000)"
    assert in_words(2.2) == "2.2"


def test_a_worker_starts_no_audit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_run", len)
    with pytest.raises(InputError, match="__main__"):
        workers.LocalPool(1).run_all(workers.Jobs([], print, begin=len, ground=(), kept="trials"))


def test_a_parquet_source_travels(tmp_path: Path) -> None:
    """Its open files raised pyarrow's "no default __reduce__"."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from skimage.io import imsave

    imsave(tmp_path / "a.png", __import__("numpy").zeros((8, 8, 3), "uint8"), check_contrast=False)
    cell = {"bytes": (tmp_path / "a.png").read_bytes(), "path": "a.png"}
    pq.write_table(pa.table({"image": [cell] * 3, "label": [0, 1, 0]}), tmp_path / "a.parquet")
    source = Parquet(path=str(tmp_path / "a.parquet"))
    assert len(source) == 3
    assert (pickle.loads(pickle.dumps(source)).read([0]).inputs == source.read([0]).inputs).all()


def test_few_controls_that_came_back_are_not_said_to_have_failed() -> None:
    two = [trial(i, 30.0, identified=True, control=True) for i in range(2)]
    said = verdict([*(trial(i, 11.0, defense="noise") for i in range(20)), *two], None).findings[0].sentence
    assert "does not recover" not in said
    assert "recovers 100 % of 2 undefended controls" in said


def test_a_read_that_needed_no_search_did_not_stand_still() -> None:
    """Rows read to 107 dB were flagged: "the objective did not move"."""

    def flags(**more: Any) -> set[str]:
        rows = [trial(i, 107.0, trace=((0, 1e-9), (9, 1e-9)), defense="noise", **more) for i in range(8)]
        return {f.kind for found in verdict([*rows, *POWER], None).findings for f in found.flags}

    assert "NoGradient" not in flags(identified=True)
    assert "NoGradient" in flags(identified=False)


def test_junit_lists_what_held_as_well(tmp_path: Path) -> None:
    judged = Judged("a", False, ("one: x on y",), "exposed", held=("auto on m, fedsgd, noise",))
    root = ET.parse(write_junit(tmp_path / "j.xml", judged)).getroot()
    assert (root.get("tests"), root.get("failures")) == ("2", "1")
    assert [c.get("name") for c in root.iter("testcase") if c.find("failure") is None] == ["auto on m, fedsgd, noise"]


def test_sarif_points_at_the_plan(tmp_path: Path) -> None:
    judged = Judged("a", False, ("identified: x", "identified: y", "power: z \x00"), "exposed")
    (run,) = json.loads(write_sarif(tmp_path / "g.sarif", judged, "plans/audit.yaml").read_text())["runs"]
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == ["identified", "power"]
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("identified", "error")] * 2 + [("power", "error")]
    places = {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in run["results"]}
    assert places == {"plans/audit.yaml"}
    empty = json.loads(write_sarif(tmp_path / "g.sarif", Judged("a", True, (), "not_recovered"), "p").read_text())
    assert empty["runs"][0]["results"] == []


def _plan(folder: Path, **data: Any) -> Any:
    return resolve_plan({"model": "lenet", "data": {"source": f"npz:{folder / 'd.npz'}", "batches": 3, **data}})


@pytest.mark.parametrize(
    ("brightness", "labels", "rule"),
    [(0.06, range(12), "dark-data"), (1.0, [0] * 12, "one-class-clients"), (1.0, range(12), "")],
)
def test_data_that_nobody_meant_are_found(tmp_path: Path, brightness: float, labels: Any, rule: str) -> None:
    x = brightness * np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.array([i % 3 for i in labels]))
    found = {f.rule for f in of_data(_plan(tmp_path, batch=3, low=0.0, high=1.0))}
    assert found == ({rule} if rule else set())


@pytest.mark.parametrize(("most", "needed"), [(0.5, 5), (0.7, 0)])
def test_too_few_clients_for_the_gate_are_named_before_the_run(tmp_path: Path, most: float, needed: int) -> None:
    x = np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(12) % 3)
    plan = _plan(tmp_path, batch=3)
    gate = GateConfig.model_validate({"identified": {"max": most}})
    asked = plan.keys.model_copy(update={"gate": gate})
    found = list(of_gate(replace(plan, keys=asked)))
    assert [(f.rule, f.hint.split(",")[0]) for f in found] == [("too-few-clients", f"data.batches: {needed}")] * bool(
        needed
    )
    assert not list(of_gate(plan))
    keys = asked.model_copy(update={"update": "round"})
    captured = list(of_gate(SimpleNamespace(keys=keys, data=plan.data, source=plan.source)))
    assert [f.hint.split(",")[0] for f in captured] == [f"rounds of {needed} clients"] * bool(needed)


def test_data_are_said_alike_in_a_plan_and_as_an_option() -> None:
    assert parse({"data": "folder:scans"}).data == parse({"data": {"source": "folder:scans"}}).data


def test_a_folder_of_grey_pictures_is_grey(tmp_path: Path) -> None:
    for name, mode in (("a", "L"), ("b", "L"), ("c", "RGB")):
        Image.new(mode, (64, 64)).save(tmp_path / f"{name}.png")
        assert Folder(path=str(tmp_path), size=None).depth == (3 if mode == "RGB" else 1)
    assert Folder(path=str(tmp_path), channels=1).shape == (1, 32, 32)
