"""The gate: what was not attacked, not known or not read is never passed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import Tensor, nn

from leakgauge.cli import main
from leakgauge.compute import Compute
from leakgauge.errors import InputError
from leakgauge.observation import Cost
from leakgauge.risk.lint import read_lint
from leakgauge.study.document import signed, verdict_of
from leakgauge.study.grammar import GateConfig, parse
from leakgauge.study.judging.decision import Answer, decide, label_words
from leakgauge.study.judging.records import Role, read_trial
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.store import Store
from leakgauge.study.trial import run_trial
from study.plans import tiny
from study.trials import POWER, judged, quiet, row_of, trial

LIMIT = GateConfig.model_validate({"identified": {"max": 0.2}})


class Normed(nn.Module):
    """BatchNorm over the pixels beside a branch that is a little of everything."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(768, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.sigmoid(self.norm(x)).flatten(1))
        return out


@pytest.mark.parametrize(("defense", "flagged"), [("instahide", True), ("mixup", False)])
def test_a_defence_that_is_broken_by_more_than_one_update_does_not_pass(defense: str, flagged: bool) -> None:
    """InstaHide passed where one update was not solved for its encodings: published attacks have many."""
    data = {"source": "samples", "size": 16, "batch": 2, "batches": 1, "normalise": False}
    plan = resolve_plan(tiny(defenses=[defense], data=data))
    record = run_trial(plan, next(key for key in plan.trials() if not key.control), compute=Compute()).record
    by = read_trial(record).scenario.broken_by
    rows = [replace(t, scenario=replace(t.scenario, broken_by=by)) for t in quiet(20)]
    assert any(flag.kind == "BrokenElsewhere" for flag in row_of([*POWER, *rows]).flags) == flagged
    assert judged([*POWER, *rows]).passed is not flagged


def test_a_gate_without_a_limit_is_refused() -> None:
    """`gate: {}` passed whatever was not outright exposed, partly identified clients too."""
    with pytest.raises(InputError, match="name a limit"):
        parse(tiny(gate={}))


def test_an_exact_read_passes_no_gate_whatever_was_attacked() -> None:
    """The page said "No", a lint having read the examples exactly, over "not recovered", a passed gate and exit code 0:
    the plan's one attack was a search that missed them."""
    found = verdict([*POWER, *quiet(20)], LIMIT, "m: closed-form reads 1 of 1 examples exactly")
    assert found.level is Level.EXPOSED
    assert "can be read exactly" in found.headline[0]
    assert found.gate.passed is False
    assert decide(found, LIMIT, captured=False).answer is Answer.NO


def test_a_reader_of_labels_that_fails_without_a_defence_clears_none() -> None:
    """With a loss that it does not assume a reader scores F1 0 on anybody: "labels are read no better than by
    guessing", and a limit on labels held."""
    rows = quiet(40, f1=0.0, constant=0.25)
    blind = [trial(i, 30.0, identified=True, control=True, f1=0.0, constant=0.25) for i in range(5)]
    sighted = [trial(i, 30.0, identified=True, control=True, f1=1.0, constant=0.25) for i in range(5)]
    limits: dict[str, Any] = {"label_f1": {"max": 0.5}}
    assert judged([*blind, *rows], **limits).passed is False
    assert judged([*sighted, *rows], **limits).passed is True
    assert "fails on undefended controls" in label_words([row_of([*blind, *rows])])
    assert "no better than by guessing" in label_words([row_of([*sighted, *rows])])


def test_reads_without_a_search_pass_no_gate() -> None:
    """A closed form that a defence stops, and nothing else: "none of the attacks tried recovered an image", exit 0."""
    reads = [replace(t, trace=(), cost=Cost(0, 1.0)) for t in quiet(60)]
    result = judged([*POWER, *reads])
    assert result.passed is False
    assert "only reads without a search were tried" in result.reasons[0].text
    assert result.reasons[0].text.endswith("add auto to attacks")
    idle = [trial(i, None, defense="d", attack="auto", status="not_applicable", role=Role.STRONGEST) for i in range(60)]
    named = judged([*POWER, *reads, *idle]).reasons[0].text
    assert named.endswith("a search may find what they miss: auto did not apply (it broke)")
    control = [replace(t, attack="b", trace=()) for t in POWER]
    assert judged([*POWER, *control, *reads, *quiet(60)]).passed is True
    assert judged([*POWER, *(replace(t, role=Role.STRONGEST) for t in reads)]).passed is True


@pytest.mark.parametrize("knows", [["buffers", "defense"], ["defense"]])
def test_statistics_that_travel_uncovered_pass_no_gate(tmp_path: Path, knows: list[str]) -> None:
    """Noise covered the gradient, and "No objection" the update; the running statistics beside it, less the broadcast
    ones, were 16 of 16 pictures as thumbnails. Where they are not known to travel, that they stay is said."""
    gate = {"identified": {"max": 0.5}}
    raw = tiny(model="study.test_gate:Normed", mode="train", knows=knows, attacks=["closed-form"], gate=gate)
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(raw | {"data": raw["data"] | {"batch": 2}, "defenses": [{"noise": {"sigma": 10}}]}))
    CliRunner().invoke(main, ["audit", str(plan), "-o", str(tmp_path / "out"), "--workers", "1"])
    store = Store.open(tmp_path / "out")
    told = [r.text for r in verdict_of(store).gate.reasons if r.text.startswith("statistics: ")]
    assert bool(told) == ("buffers" in knows)
    if told:
        assert "running statistics of norm, raw: no defence covers them" in told[0]
    lint = read_lint(tmp_path / "out", store.audit.identity)
    store.close()
    passed = verdict([*POWER, *quiet(20)], LIMIT)
    record = signed(passed, {"gate": LIMIT}, {}, lint)
    assert ("if the running statistics of BatchNorm stay with the client" in str(record["title"])) != bool(told)
    assert "statistics" not in str(signed(passed, {"gate": LIMIT}, {}, [])["title"])
