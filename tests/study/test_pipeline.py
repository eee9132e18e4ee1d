"""Audits in a pipeline: the gate's files and the schema."""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console

from leakgauge.cli import main
from leakgauge.cli.audit import Judged, write_junit
from leakgauge.risk.lint import LintFinding, LintSeverity
from leakgauge.study.document import schema
from leakgauge.study.identity import withheld_name
from leakgauge.study.lint import print_rules
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
    result = CliRunner().invoke(main, ["gate", "-v", str(audit / "out"), "--json", str(tmp_path / "g.json")])
    reasons = json.loads((tmp_path / "g.json").read_text())["reasons"]
    assert max(map(len, reasons)) > 80
    assert all(len(line) <= 80 for line in result.output.splitlines())
    assert result.output.replace("\n  ", " ").splitlines()[:-1] == reasons
    *settings, last = run("gate", audit / "out")[1].split("more)")
    assert len(settings) < len(reasons)
    assert last.endswith("gate failed")


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


def test_findings_before_an_audit_are_a_line_a_rule_and_where_the_rest_lies() -> None:
    found = [LintFinding("exact-read", LintSeverity.HIGH, where, "seen", "a hint") for where in ("mlp", "lenet")]
    console = Console(file=io.StringIO(), width=80)
    print_rules(console, found, "lint.json")
    *rules, last = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert rules == ["high: exact-read: mlp, and 1 more"]
    assert last.startswith("lint: 2 ")
    assert last.endswith("; evidence and what helps: lint.json")
