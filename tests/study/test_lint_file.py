"""Findings of the lint beside an audit: damaged or missing ones clear nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from leakgauge.cli import main
from leakgauge.errors import InputError
from leakgauge.risk.lint import LINT, LintFinding, LintSeverity, findings_text, read_lint
from leakgauge.study.document import summary, verdict_of
from leakgauge.study.store import Store
from study.plans import tiny


def test_a_lint_that_was_damaged_says_so(tmp_path: Path) -> None:
    """One bit in the name of a rule, and an exact read was none; with a bracket missing nothing had been found."""
    found = LintFinding("exact-read", LintSeverity.HIGH, "m", "closed-form reads 1 of 1 examples exactly", "a defence")
    file = tmp_path / LINT
    for text in (findings_text([found], "mine").replace("exact-read", "exact-reae"), "{"):
        file.write_text(text)
        with pytest.raises(InputError, match="cannot be read"):
            read_lint(tmp_path, "mine")
    file.write_text(findings_text([found], "mine"))
    assert read_lint(tmp_path, "mine") == [found]


def test_a_lint_that_is_gone_or_of_another_audit_clears_nothing(tmp_path: Path) -> None:
    """With `lint.json` removed, or that of a calm audit copied over it, an exact read was none: "not recovered"."""
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(tiny(attacks=["closed-form"], defenses=["none"], gate={"identified": {"max": 0.5}})))
    words = ["audit", str(plan), "-o", str(tmp_path / "out"), "--workers", "1"]
    assert "exact-read" in CliRunner().invoke(main, words).output
    file = tmp_path / "out" / LINT
    kept = file.read_text()

    def judged_again() -> str:
        return CliRunner().invoke(main, ["gate", str(tmp_path / "out")]).output

    assert "lint:" not in judged_again()
    for text in (None, findings_text([], "another")):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        said = judged_again()
        assert "lint: lint.json is" in said
        assert said.endswith("gate failed\n")
    store = Store.open(tmp_path / "out")
    assert "not-run" in str(summary(store, verdict_of(store))["decision"])
    store.close()
    assert "exact-read" in CliRunner().invoke(main, words).output, "the same command reads the plan again"
    assert file.read_text() == kept
