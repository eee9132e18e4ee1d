"""Damage, two writers and a folder that has lost all but its store."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from leakgauge.errors import InputError
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import run
from leakgauge.study.session import write_reports
from leakgauge.study.store import FILE, LOCK, Store
from study.plans import document, tiny


def plan_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two trials on records of numbers."""
    numbers = np.random.default_rng(0)
    x = numbers.random((12, 1, 12), dtype=np.float32)
    np.savez(folder / "x.npz", x=x, y=np.arange(12) % 3)
    raw = {
        "model": {"mlp": {"hidden": [6]}},
        "data": {"source": f"npz:{folder / 'x.npz'}", "batches": 2},
        "defenses": ["none"],
        "attacks": ["closed-form"],
        "gallery": 3,
    }
    return tiny(**raw | changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    store = run(resolve_plan(plan_of(folder, gate={"identified": {"max": 0.05}})), folder / "out")
    write_reports(store)
    store.close()
    return folder / "out"


def copy_of(finished: Path, to: Path) -> Path:
    to.mkdir(exist_ok=True)
    shutil.copy(finished / FILE, to / FILE)
    return to


def test_all_that_an_audit_writes_is_its_owners_alone(finished: Path) -> None:
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (finished, *finished.iterdir())}
    names = FILE, LOCK, "report.json", "report.html", "sheet.html"
    assert modes == {"out": 0o700} | dict.fromkeys(names, 0o600)


def test_two_audits_in_one_folder_are_one_line(tmp_path: Path) -> None:
    plan = resolve_plan(plan_of(tmp_path))
    first = run(plan, tmp_path / "out")
    with pytest.raises(InputError, match="another audit is writing into it"):
        run(plan, tmp_path / "out")
    code = (
        "import sys; from pathlib import Path; from filelock import FileLock; from leakgauge.study.store import LOCK; "
        "FileLock(Path(sys.argv[1]) / LOCK, 0).acquire()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode == 1, "not free for another process"
    first.close()
    assert subprocess.run(command, check=False).returncode == 0, "free"
    run(plan, tmp_path / "out").close()


OWN_CODE = """
import torch
from torch import nn
from leakgauge.attacks.closed_form import LinearRead

def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, classes))

def attack() -> LinearRead:
    return LinearRead()
"""


def test_gate_and_report_need_the_store_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data's folder, the model's file, the plan and the plan's code are gone, in a process that never saw them."""
    work, moved = tmp_path / "work", tmp_path / "moved"
    work.mkdir()
    (work / "my_code.py").write_text(OWN_CODE)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 3))
    save_file(net.state_dict(), work / "weights.safetensors")
    plan = plan_of(
        work,
        model={"my_code:net": {"weights": str(work / "weights.safetensors")}},
        attacks=["closed-form", "my_code:attack"],
        gate={"identified": {"max": 0.05}},
    )
    monkeypatch.syspath_prepend(work)
    store = run(resolve_plan(plan), tmp_path / "out")
    write_reports(store)
    store.close()
    page = tmp_path / "out" / "report.html"
    before = page.read_bytes(), page.with_suffix(".json").read_bytes()
    work.rename(moved)
    page.unlink()
    page.with_suffix(".json").unlink()
    code = (
        "import sys\nfrom leakgauge.cli import main\nfor command in (['gate', '-v'], ['report']):\n"
        " try: code = main([*command, 'out'])\n except SystemExit as end: code = end.code\n print('exit', code or 0)"
    )
    python = [sys.executable, "-P", "-c", code]
    done = subprocess.run(python, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ)
    lines = done.stdout.replace("\n  ", " ").splitlines()  # a reason goes on in lines that are set in
    assert [line for line in lines if line.startswith("exit ")] == ["exit 1", "exit 0"], done.stderr
    assert (page.read_bytes(), page.with_suffix(".json").read_bytes()) == before
    reasons = json.loads(before[1])["verdict"]["gate"]["reasons"]
    assert reasons
    assert lines[: len(reasons) + 1] == [*reasons, "gate failed"]


def test_a_trial_that_is_not_there_is_missing_without_the_plan(finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "less")
    connection = sqlite3.connect(folder / FILE)
    connection.execute("delete from trials where id like '%b001'")
    connection.commit()
    connection.close()
    store = Store.open(folder)
    assert store.missing() == 1
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "update trials set record = replace(record, '\"seed\": 0', '\"seed\": 1')",
        "update trials set id = 'x' where id like '%b001'",
        "update trials set created_at = 'x'",
        "update trials set record = x'ff00'",
        "update pictures set reconstruction = x'00'",
        "delete from pictures",
        "update audits set config = '{}'",
        "update audits set counts_only = 'x'",
        "update audits set contents = null",
        "delete from planned where id like '%b001'",
        "drop table trials",
        "alter table trials drop column checksum",
    ],
)
def test_what_was_changed_by_hand_or_by_a_disk_is_no_report(damage: str, finished: Path, tmp_path: Path) -> None:
    folder = copy_of(finished, tmp_path / "damaged")
    if "pictures" in damage:
        folder = tmp_path / "pictures"
        plan = tiny(attacks=["closed-form"], defenses=["none"], data={"source": "samples", "size": 16, "batches": 1})
        run(resolve_plan(plan), folder).close()
    connection = sqlite3.connect(folder / FILE)
    try:
        connection.execute(damage)
    except sqlite3.IntegrityError:
        connection.close()
        pytest.skip("SQLite itself does not let it")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="is damaged"):
        write_reports(Store.open(folder))


@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_file_is_one_line_or_the_same_report(
    data: st.DataObject, finished: Path, tmp_path_factory: Any
) -> None:
    raw = bytearray((finished / FILE).read_bytes())
    kind = data.draw(st.sampled_from(["bit", "cut", "zeros", "bytes"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    if kind == "bit":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[at:]
    else:
        length = data.draw(st.integers(1, 4096))
        raw[at : at + length] = bytes(length) if kind == "zeros" else data.draw(st.binary(min_size=1, max_size=64))
    folder = tmp_path_factory.mktemp("bits")
    (folder / FILE).write_bytes(raw)
    good = json.loads((finished / "report.json").read_text())
    try:
        store = Store.open(folder)
        try:
            found, left = document(store), store.missing()
            store.pictures()
        finally:
            store.close()
    except InputError:
        return
    finally:
        shutil.rmtree(folder)
    assert left or json.dumps(found) == json.dumps(good), "another report, unnoticed"
