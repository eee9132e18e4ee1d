"""What a version wrote loads for ever: its plan, a captured update, stored results and report.json, as 0.1.0 left them.

They are never written anew. Who changes a format gives what reads the old one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner

from leakgauge.cli import main
from leakgauge.study.document import SCHEMA_VERSION, schema
from leakgauge.study.grammar import read_yaml
from leakgauge.study.plan import resolve_plan
from leakgauge.update import Update, UpdateKind

VERSIONS = sorted(path for path in Path(__file__).parent.iterdir() if path.is_dir() and (path / "plan.yaml").exists())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def _report(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "audit" / "report.json").read_text(encoding="utf-8")))


def test_a_plan_is_read_and_has_the_trials_that_it_had(kept: Path) -> None:
    plan = resolve_plan(read_yaml(kept / "plan.yaml"))
    assert len(plan.trials()) == len(_report(kept)["trials"])


def test_a_captured_update_is_read(kept: Path) -> None:
    update = Update.load(kept / "update.safetensors")
    assert (update.header.kind, update.header.example_count) == (UpdateKind.DELTA, 2)
    assert {k: (tuple(t.shape), t.dtype) for k, t in update.tensors.items()} == {
        "0.weight": ((3, 2), torch.float32),
        "0.bias": ((3,), torch.bfloat16),
    }
    assert set(update.buffers or {}) == {"1.running_mean"}


def test_stored_results_give_the_report_and_the_gate_that_they_gave(kept: Path) -> None:
    before = _report(kept)
    said = CliRunner().invoke(main, ["report", str(kept / "audit")])
    assert said.exit_code == 0, said.output
    after = _report(kept)
    assert [t["id"] for t in after["trials"]] == [t["id"] for t in before["trials"]]
    assert [t["scores"] for t in after["trials"]] == [t["scores"] for t in before["trials"]]
    assert CliRunner().invoke(main, ["gate", str(kept / "audit")]).exit_code == 1
    assert after["verdict"]["level"] == before["verdict"]["level"] == "exposed"


def test_a_report_follows_the_schema_of_its_number(kept: Path) -> None:
    report = _report(kept)
    if report["schema_version"] == SCHEMA_VERSION:  # properties may come, and none goes
        jsonschema.validate(report, schema())
