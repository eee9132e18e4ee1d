"""What attacks and defences are said to be shown by is there, and their versions stand for what they read."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import leakgauge as lg
from attacks.test_contracts import CASES, Case, observe
from cases import batch
from leakgauge.compute import Budget
from leakgauge.metrics.metric import PSNR
from leakgauge.registry import ATTACKS, DEFENSES
from leakgauge.study.levels import LEVELS, Standing, standing, unvetted

ROOT = Path(__file__).parents[1]
READS = Path(__file__).parent / "kept" / "reads.json"
PARTS = [(registry.kind, entry.name) for registry in (ATTACKS, DEFENSES) for entry in registry]
SHOWN = [(kind, name, level) for kind, name in PARTS for level in standing(kind, name).shown]


@cache
def collected() -> tuple[str, ...]:
    """Names of the tests that CI runs in the files that are cited."""
    cited = {where.split("::")[0] for kind, name in PARTS for where in standing(kind, name).shown.values()}
    files = sorted(file for file in cited if file.endswith(".py"))
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o"]
    words += ["addopts=--import-mode=importlib -m 'not slow and not notebook'", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:]
    return tuple(line for line in done.stdout.splitlines() if "::" in line)


def shown(where: str, name: str) -> bool:
    """Whether a test is run, a table has rows, a claim of a paper holds, or a defence has a rank in the board."""
    file, _, case = where.partition("::")
    if file.endswith(".py"):
        return any(line == where or line.startswith(f"{where}[") for line in collected())
    if file.endswith(".jsonl"):
        key, _, value = case.partition("=")
        rows = [json.loads(line) for line in (ROOT / file).read_text().splitlines()]
        return any(row.get(key) == value and row.get("side", "leakgauge") == "leakgauge" for row in rows)
    if file.endswith(".yaml"):
        from reproduce.claims.verdict import Verdict, decisions

        verdicts = {one.claim.id: one.verdict for one in decisions(Path(file).stem)}
        return verdicts[case] in (Verdict.HOLDS, Verdict.SMALLER)
    from leaderboard.board import Board

    rows = [row for row in Board(ROOT / "leaderboard").rows() if row.kind == "defence" and row.worst is not None]
    return any(getattr(row, name).stands if case in ("naive", "adapted") else name in row.label for row in rows)


def test_every_registered_attack_and_defence_has_a_version_and_known_levels() -> None:
    table = {(kind, name): standing(kind, name) for kind, name in PARTS}
    assert all(one.version >= 1 for one in table.values())
    assert {level for one in table.values() for level in one.shown} <= set(LEVELS)


@pytest.mark.parametrize(("kind", "name", "level"), SHOWN)
def test_what_shows_a_level_is_there(kind: str, name: str, level: str) -> None:
    where = standing(kind, name).shown[level]
    assert (ROOT / where.split("::")[0]).exists()
    assert shown(where, name), where


def test_a_level_rests_on_an_oracle() -> None:
    assert Standing(1, {"oracle": "a", "fuzzed dry": "b"}).level == "fuzzed dry"
    assert Standing(1, {"fuzzed dry": "b"}).level == "none"
    assert standing("attacks", "mine:Attack") == Standing(0, {})


def test_what_is_not_vetted_is_named() -> None:
    kept = {"attacks": {"auto": {"version": 1, "level": "held-out"}, "mine": {"version": 0, "level": "none"}}}
    assert list(unvetted(kept | {"defenses": {"clip": {"version": 1, "level": "oracle"}}})) == [
        "mine is not vetted (level: none)",
        "clip is not vetted (level: oracle)",
    ]
    assert list(unvetted({})) == [
        "its attacks is not vetted (level: not kept: run the audit anew)",
        "its defenses is not vetted (level: not kept: run the audit anew)",
    ]


def test_a_gate_may_ask_for_vetted_parts_alone(tmp_path: Path) -> None:
    """The part that is not vetted is named beside the other reasons; report.json keeps version and level of each."""
    photos = lg.data.Samples(size=16)
    model = lg.models.mlp(classes=photos.classes, shape=(3, 16, 16))
    gate = {"identified": {"max": 1.0}, "vetted": True}
    audit = lg.audit(model, photos, batches=2, attacks=["closed-form", "bins"], gate=gate, folder=tmp_path)
    named = [reason.text for reason in audit.verdict.gate.reasons if reason.rule == "vetted"]
    assert named == ["vetted: bins is not vetted (level: oracle)"]
    kept = json.loads((tmp_path / "report.json").read_text())["environment"]
    assert kept["attacks"]["closed-form"] == {"version": 1, "level": "replicated outside"}
    assert kept["defenses"]["none"]["version"] == 1


# What each version reads of one small round, within a tenth of a decibel: few evaluations, before rounding adds up.


def read_of(case: Case) -> dict[str, Any]:
    truth = batch(case.n)
    seen, budget = observe(case, truth), Budget(gradient_evaluations=12)
    found = case.attack.reconstruct(seen, torch.Generator().manual_seed(5), budget=budget)
    psnr = None
    if found.inputs is not None and found.inputs.shape == truth.inputs.shape:
        psnr = round(min(float(PSNR()(found.inputs.double(), truth.inputs).mean()), 90.0), 2)
    version = standing("attacks", case.registered).version
    return {"version": version, "status": found.status.value, "psnr": psnr}


NAMES = [f"{case.name} {[c.name for c in CASES[:i]].count(case.name)}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize(("name", "case"), list(zip(NAMES, CASES, strict=True)), ids=NAMES)
def test_a_version_reads_what_it_read(name: str, case: Case) -> None:
    """Where this fails on purpose, raise the attack's version in levels.yaml and keep the new read:
    ``PYTHONPATH=tests python tests/test_levels.py``."""
    kept, found = json.loads(READS.read_text())[name], read_of(case)
    assert found["version"] == kept["version"], "keep its reads"
    assert found["status"] == kept["status"]
    assert found["psnr"] == (None if kept["psnr"] is None else pytest.approx(kept["psnr"], abs=0.1))


if __name__ == "__main__":
    read = {name: read_of(case) for name, case in zip(NAMES, CASES, strict=True)}
    READS.write_text(json.dumps(read, indent=1) + "\n")
