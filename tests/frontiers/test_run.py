"""A small frontier from plan to page: what it holds, and that it can be stopped anywhere."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from filelock import FileLock
from pydantic import TypeAdapter

from leakgauge.cli import main
from leakgauge.data.source import spec
from leakgauge.frontiers.columns import participations, partition_of, trainer
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.frontiers.results import Accuracy
from leakgauge.training import read_stored


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_time(v) for k, v in value.items() if k not in ("seconds", "created_at")}
    return [_without_time(v) for v in value] if isinstance(value, list) else value


def _write_data(path: Path, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = rng.integers(0, 120, (n, 8, 8, 3), dtype=np.uint8)
    for i, label in enumerate(labels):
        images[i, 2 * label : 2 * label + 2] += 120
    np.savez(path, images=images, labels=labels)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    _write_data(folder / "train.npz", 60, 0)
    _write_data(folder / "test.npz", 30, 1)
    file = folder / "plan.yaml"
    raw = {
        "model": {"mlp": {"hidden": [8]}},
        "data": {"images": 2},
        "client": {"fedavg": {"batch_size": 8, "lr": 0.5}},
        "attack": "closed-form",
        "gallery": 10,
        "defenses": {
            "top-k": [{"topk": {"keep": 0.1}}],
            "DP-SGD": [{"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}],
            "untrained": [{"defense": {"prune": {"rate": 0.5}}, "train": False}],
        },
        "utility": {
            "train": f"npz:{folder / 'train.npz'}",
            "test": f"npz:{folder / 'test.npz'}",
            "clients": 5,
            "per_round": 2,
            "rounds": 3,
        },
    }
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    return file


def _run(plan: Path, out: Path) -> Result:
    return CliRunner().invoke(main, ["frontier", str(plan), "-o", str(out), "--workers", "1"])


@pytest.fixture(scope="module")
def out(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frontier") / "out"
    result = _run(plan, folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def report(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())  # type: ignore[no-any-return]


def test_the_report_holds_every_row_with_all_its_columns(report: dict[str, Any]) -> None:
    rows = {r["family"]: r for r in report["rows"]}
    assert list(rows) == ["undefended", "top-k", "DP-SGD", "untrained"]
    bare = rows["undefended"]
    assert bare["leakage"]["naive"] == bare["leakage"]["adapted"]
    assert bare["leakage"]["naive"]["identified"]["rate"] == 1.0, "the closed form reads an undefended mlp"
    assert bare["accuracy"]["value"] > 0.5
    assert bare["cost"]["bytes"] == bare["cost"]["bytes_undefended"] == 4 * (192 * 8 + 8 + 8 * 3 + 3)
    assert rows["top-k"]["cost"]["bytes"] < bare["cost"]["bytes"]
    assert rows["top-k"]["privacy"]["epsilon"] is None
    assert rows["untrained"]["accuracy"]["value"] is None
    assert "train: false" in rows["untrained"]["accuracy"]["reason"]


def test_epsilon_is_that_of_the_most_exposed_client(plan: Path, report: dict[str, Any]) -> None:
    pytest.importorskip("opacus")
    from leakgauge.privacy.guarantee import Guarantee, guarantee

    resolved = resolve_frontier(yaml.safe_load(plan.read_text()))
    row = resolved.rows[2]
    spent = []
    for rounds in participations(resolved):
        if rounds:
            found = guarantee(row.defense.value, sample_rate=1.0, steps=rounds * row.client.value.epochs, delta=1e-5)
            assert isinstance(found, Guarantee)
            spent.append(found.epsilon)
    stated = report["rows"][2]["privacy"]
    assert stated["epsilon"] == pytest.approx(max(spent), rel=1e-3)
    assert stated["unit"] == "example"
    assert "1 time in 11" in stated["robustness"]


def test_participations_are_those_of_the_training(plan: Path) -> None:
    resolved = resolve_frontier(yaml.safe_load(plan.read_text()))
    row, data, u = resolved.rows[1], resolved.utility, resolved.keys.utility
    assert data is not None
    both = ((data.train, u.examples), (data.test, u.test_examples))
    train, test = (read_stored(source, spec(source), most) for source, most in both)
    done = resolved.training(row).run(resolved.trained_task(data), train, partition_of(resolved), test)
    counts = [sum(c in r.asked for r in done.rounds) for c in range(5)]
    assert list(participations(resolved)) == counts
    assert sum(counts) == 6


def test_accuracy_is_that_of_the_simulation(plan: Path, report: dict[str, Any], tmp_path: Path) -> None:
    resolved = resolve_frontier(yaml.safe_load(plan.read_text()))
    run = trainer(resolved, tmp_path)
    for row in resolved.rows[:3]:
        expected = TypeAdapter(Accuracy).dump_python(run(row.training), mode="json")
        stated = next(r for r in report["rows"] if r["family"] == row.family)["accuracy"]
        assert _without_time(stated) == _without_time(expected)


def test_a_finished_run_does_no_work(plan: Path, out: Path) -> None:
    before = {
        p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name not in ("report.html", "report.json")
    }
    text, page = (out / "report.json").read_text(), (out / "report.html").read_text()
    assert _run(plan, out).exit_code == 0
    after = {p: p.stat().st_mtime_ns for p in before}
    assert {p.name for p in before if before[p] != after[p] and p.suffix != ".sqlite"} == set()
    assert (out / "report.json").read_text() == text
    assert (out / "report.html").read_text() == page


def test_a_run_that_lost_half_of_its_results_ends_with_the_same_report(plan: Path, out: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(out, half)
    with closing(sqlite3.connect(half / "measured" / "audit.sqlite")) as store, store:
        assert store.execute("DELETE FROM trials WHERE id LIKE '%topk%'").rowcount == 2, (
            "a training and its client time"
        )
    (audit,) = (half / "leakage").glob("*/audit.sqlite")
    with closing(sqlite3.connect(audit)) as store, store:
        assert store.execute("DELETE FROM trials WHERE id LIKE '%adapted%topk%' OR id LIKE '%topk%adapted%'").rowcount
    (half / "report.json").unlink()
    assert _run(plan, half).exit_code == 0
    found, expected = (json.loads((f / "report.json").read_text()) for f in (half, out))
    assert json.dumps(_without_time(found)) == json.dumps(_without_time(expected))


def test_a_folder_of_another_plan_is_refused(plan: Path, out: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(yaml.safe_load(plan.read_text()) | {"seeds": [3]}))
    result = _run(other, out)
    assert result.exit_code == 2
    assert "of another seeds" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_folder_of_something_else_is_left_alone(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "scan.png").touch()
    refused = _run(plan, tmp_path)
    assert refused.exit_code == 2
    assert "holds no results, but scan" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["scan.png"]


def test_without_data_accuracy_is_not_measured_and_everything_else_is(plan: Path, tmp_path: Path) -> None:
    raw = yaml.safe_load(plan.read_text())
    raw["utility"] = {}
    raw["data"] = {"images": 1, "size": 8}
    raw["defenses"] = {"top-k": [{"topk": {"keep": 0.1}}]}
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(raw, sort_keys=False))
    copy = tmp_path / "copy.json"
    result = CliRunner().invoke(
        main, ["frontier", str(file), "-o", str(tmp_path / "out"), "--workers", "1", "--json", str(copy)]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(copy.read_text())
    assert [r["accuracy"]["value"] for r in report["rows"]] == [None, None]
    assert "--train" in report["rows"][0]["accuracy"]["reason"]
    assert report["rows"][1]["leakage"]["adapted"] is not None
    assert "Accuracy was not measured" in (tmp_path / "out" / "report.html").read_text()


def test_other_data_under_the_same_name_are_refused_and_two_writers_are_one_line(plan: Path, tmp_path: Path) -> None:
    """Trainings on data that were replaced since stood beside new ones."""
    raw, file = yaml.safe_load(plan.read_text()), tmp_path / "plan.yaml"
    _write_data(tmp_path / "train.npz", 60, 0)
    raw["utility"]["train"] = f"npz:{tmp_path / 'train.npz'}"
    file.write_text(yaml.safe_dump(raw | {"defenses": {"top-k": [{"topk": {"keep": 0.1}}]}}))
    assert _run(file, tmp_path / "out").exit_code == 0
    with FileLock(tmp_path / "out" / "measured" / ".audit.lock", 0):
        busy = _run(file, tmp_path / "out")
    _write_data(tmp_path / "train.npz", 60, 7)
    refused = _run(file, tmp_path / "out")
    assert (busy.exit_code, refused.exit_code) == (2, 2)
    assert "is writing into it" in busy.output
    assert "other contents of utility.train" in refused.output
