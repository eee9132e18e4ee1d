"""Audits in a pipeline: the gate's files, the schema, two audits compared, and what an audit will take."""

from __future__ import annotations

import copy
import io
import json
import shutil
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from leakgauge.cli import main
from leakgauge.cli.gate import lines
from leakgauge.cli.lint import decision
from leakgauge.errors import InputError
from leakgauge.risk.lint import LintFinding, LintSeverity
from leakgauge.study.contents import withheld_name
from leakgauge.study.pipeline.compare import compare
from leakgauge.study.pipeline.estimate import Estimate, TrialCost
from leakgauge.study.pipeline.gate import Judged, write_junit
from leakgauge.study.pipeline.linted import print_rules
from study.plans import tiny

jsonschema = pytest.importorskip("jsonschema")


def run(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(word) for word in words])
    return result.exit_code, " ".join(result.output.split())


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small audit that fails its gate, without images."""
    folder = tmp_path_factory.mktemp("pipeline")
    plan = tiny(gate={"identified": {"max": 0.5}}, attacks=["closed-form"])
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    words = (folder / "plan.yaml", "-o", folder / "out", "--workers", 1, "--counts-only", "--fail-on-gate")
    assert run("audit", *words, "--junit", folder / "a.xml")[0] == 1
    return folder


def test_each_reason_of_the_gate_fits_the_terminal_and_begins_a_line(audit: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["gate", str(audit / "out"), "--json", str(tmp_path / "g.json")])
    reasons = json.loads((tmp_path / "g.json").read_text())["reasons"]
    assert max(map(len, reasons)) > 80
    assert all(len(line) <= 80 for line in result.output.splitlines())
    assert result.output.replace("\n  ", " ").splitlines()[:-1] == reasons


def test_the_gate_writes_what_it_says(audit: Path, tmp_path: Path) -> None:
    code, text = run("gate", audit / "out", "--json", tmp_path / "g.json", "--junit", tmp_path / "g.xml")
    assert (code, "gate failed" in text) == (1, True)
    kept = json.loads((tmp_path / "g.json").read_text())
    assert (kept["audit"], kept["passed"], kept["level"]) == ("tiny", False, "exposed")
    tests = ET.parse(tmp_path / "g.xml").getroot()
    assert [case.get("message") for case in tests.iter("failure")] == kept["reasons"]
    assert (tmp_path / "g.xml").read_bytes() == (audit / "a.xml").read_bytes()


@pytest.mark.parametrize(
    ("judged", "counts"),
    [
        (Judged("a", True, (), "not_recovered"), ("1", "0", "0")),
        (Judged("a", None, (), "not_recovered"), ("1", "0", "1")),
        (Judged("a", False, ("one & <two>", "bad \x00 character"), "exposed"), ("2", "2", "0")),
    ],
)
def test_junit_holds_for_any_decision(judged: Judged, counts: tuple[str, ...], tmp_path: Path) -> None:
    root = ET.parse(write_junit(tmp_path / "j.xml", judged)).getroot()
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == counts


def test_a_plan_without_a_gate_is_refused_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(tiny()))
    code, text = run("audit", tmp_path / "p.yaml", "-o", tmp_path / "out", "--fail-on-gate")
    assert (code, "the plan has none" in text, (tmp_path / "out").exists()) == (2, True, False)


def schema() -> dict[str, Any]:
    return dict(json.loads(files("leakgauge.study").joinpath("report.schema.json").read_text()))


def test_reports_are_what_the_schema_says(audit: Path) -> None:
    report = json.loads((audit / "out" / "report.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(report, schema())
    assert json.loads(CliRunner().invoke(main, ["report", "--schema"]).output) == schema()


@pytest.mark.parametrize(
    "path",
    [("verdict",), ("verdict", "gate", "passed"), ("trials", 0, "scores", "psnr"), ("verdict", "findings", 0, "level")],
)
def test_the_schema_misses_what_is_not_there(audit: Path, path: tuple[str | int, ...]) -> None:
    report = json.loads((audit / "out" / "report.json").read_text())
    *inner, last = path
    part: Any = report
    for key in inner:
        part = part[key]
    del part[last]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema())


def test_counts_only_keeps_no_name(audit: Path) -> None:
    names = {"astronaut", "camera", "coffee", "chelsea", "cat", "rocket"}
    report = json.loads((audit / "out" / "report.json").read_text())
    kept = [name for trial in report["trials"] for name in trial["scenario"]["data"]["names"]]
    assert all(name.startswith("#") and len(name) == 13 for name in kept)
    stored = (audit / "out" / "audit.sqlite").read_bytes() + (audit / "out" / "report.html").read_bytes()
    assert not [name for name in names if f'"{name}"'.encode() in stored]
    assert withheld_name("müller\udcff.png") != withheld_name("müller.png")


def outcomes(defense: str, identified: list[bool], psnr: list[float | None]) -> dict[str, Any]:
    trials = [
        {
            "scenario": {"model": "m", "client": "c", "defense": defense, "data": {"names": [f"n{i}"]}},
            "attack": "a",
            "control": False,
            "status": "converged",
            "scores": {"identified": [known], "psnr": [value]},
        }
        for i, (known, value) in enumerate(zip(identified, psnr, strict=True))
    ]
    return {"trials": trials}


def test_audits_are_paired_by_example() -> None:
    first = outcomes("none", [True] * 8, [20.0, 22.0, 24.0, 26.0, 20.0, 22.0, 24.0, 26.0])
    second = outcomes("noise", [False] * 7 + [True], [18.0, 20.0, 22.0, 24.0, 18.0, 20.0, 22.0, None])
    (pair,) = compare(first, second).pairs
    assert (pair.examples, pair.identified, pair.only_first, pair.only_second) == (8, (8, 1), 7, 0)
    assert pair.p_value == pytest.approx(2 * 0.5**7)
    assert pair.difference == pytest.approx(-2.0)
    assert pair.interval == pytest.approx((-2.0, -2.0))
    (same,) = compare(first, first).pairs
    assert (same.p_value, same.difference) == (1.0, 0.0)


def test_a_trial_without_a_result_is_not_identified_and_other_data_are_refused() -> None:
    first, second = outcomes("none", [True], [20.0]), outcomes("none", [True], [20.0])
    second["trials"][0] |= {"scores": None, "status": "failed"}
    (pair,) = compare(first, second).pairs
    assert (pair.identified, pair.difference) == ((1, 0), None)
    other = copy.deepcopy(first)
    other["trials"][0]["scenario"]["data"]["names"] = ["else"]
    with pytest.raises(InputError, match="no example in common"):
        compare(first, other)
    other["trials"][0] |= {"attack": "b", "scenario": first["trials"][0]["scenario"] | {"defense": "d"}}
    with pytest.raises(InputError, match="no setting in common"):
        compare(first, other)


def test_what_two_audits_do_not_share_is_said(audit: Path, tmp_path: Path) -> None:
    """An attack that broke on all clients of B had "0 of 8 in B"; settings without a common example "0 of 0", p = 1; an
    audit with a hundredth of the effort, other pictures under the same names, or a report.json changed by hand "only in
    A 8"."""
    first, second = outcomes("none", [True] * 2, [20.0] * 2), outcomes("none", [True] * 2, [20.0] * 2)
    for trial in second["trials"]:
        trial |= {"scores": None, "status": "failed"}
    elsewhere = outcomes("topk", [True], [20.0])["trials"][0]
    first["trials"].append(copy.deepcopy(elsewhere))
    elsewhere["scenario"]["data"]["names"] = ["else"]
    second["trials"].append(elsewhere)
    failed, apart = compare(first, second).pairs
    assert "  without a result, which is no protection: 2 in B" in lines(failed)
    assert lines(apart)[-1] == "  no example in common, so nothing to compare"
    calm = json.loads((audit / "out" / "report.json").read_text())
    calm["config"]["budget"], calm["decision"]["hashes"]["data"] = {"gradient_evaluations": 1}, "other"
    for trial in calm["trials"]:
        trial["scores"]["identified"] = [False]
    (tmp_path / "calm.json").write_text(json.dumps(calm))
    differ = "the audits differ in budget, the contents of the data too"
    assert differ in run("compare", audit / "out", tmp_path / "calm.json")[1]
    shutil.copytree(audit / "out", tmp_path / "changed")
    shutil.copy(tmp_path / "calm.json", tmp_path / "changed" / "report.json")
    code, text = run("compare", audit / "out", tmp_path / "changed")
    assert (code, "2 of 2 in A, 2 of 2 in B" in text, "differ in" in text) == (0, True, False)


def test_the_commands(audit: Path, tmp_path: Path) -> None:
    code, text = run("compare", audit / "out", audit / "out", "--json", tmp_path / "c.json")
    assert (code, "identified: 2 of 2 in A, 2 of 2 in B PSNR, B less A: +0.0 dB" in text) == (0, True)
    assert len(json.loads((tmp_path / "c.json").read_text())["pairs"]) == 2
    assert run("compare", audit / "out", tmp_path)[0] == 2
    code, text = run("estimate", audit / "plan.yaml", "--json", tmp_path / "e.json", "--workers", 1)
    assert code == 0
    assert "The gate needs 5 clients in each setting if none is identified; the plan has 2, so it cannot pass" in text
    kept = json.loads((tmp_path / "e.json").read_text())
    assert (kept["trials"], kept["needed"], kept["at_least"]) == (9, 5, False)


@pytest.mark.parametrize(
    ("needed", "said"), [(None, "no gate"), (float("inf"), "none at all"), (4.0, "the plan has 8."), (20.0, "12 more")]
)
def test_the_forecast_says_whether_the_gate_can_decide(needed: float | None, said: str) -> None:
    found = Estimate((TrialCost("x", 3, 2.0, False), TrialCost("y", 1, 4.0, True)), 8, needed)
    assert (found.trials, found.seconds, found.is_least) == (4, 10.0, True)
    assert said in decision(found)


def test_findings_before_an_audit_are_a_line_a_rule_and_where_the_rest_lies() -> None:
    found = [LintFinding("exact-read", LintSeverity.HIGH, where, "seen", "a hint") for where in ("mlp", "lenet")]
    console = Console(file=io.StringIO(), width=80)
    print_rules(console, found, "lint.json")
    *rules, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert rules == ["high: exact-read: mlp, and 1 more"]
    assert last.startswith("lint: 2 ")
    assert last.endswith("; evidence and what helps: lint.json")
