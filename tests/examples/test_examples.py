"""The scripts of examples/ run as they stand; the library example of the README stays short."""

from __future__ import annotations

import ast
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import leakgauge as lg
from docs.pages import ROOT, blocks, difference
from leakgauge.study.grammar import read_yaml
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial

EXAMPLES = ROOT / "examples"


def test_an_audit_of_ones_own_runs_in_a_script_without_a_guard(tmp_path: Path) -> None:
    """A process of its own, as a user starts it: worker processes must not run the script again."""
    script = tmp_path / "own.py"
    text = (EXAMPLES / "audit_own_model.py").read_text(encoding="utf-8")
    own = "class Quiet(NoDefense):\n    '''A class of the script itself.'''\n\n\naudit = lg.audit("
    text = text.replace("audit = lg.audit(", own).replace("[NoDefense(), noise", "[Quiet(), noise")
    script.write_text(text.replace("batches=4", "batches=2, workers=2") + f'audit.save("{tmp_path}/kept")\n')
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert found.stdout.startswith("Client images were reconstructed in 1 of 2 settings")
    assert found.stdout.rstrip().endswith("gate failed")
    assert {p.name for p in (tmp_path / "kept").iterdir()} == {
        "audit.sqlite",
        "report.json",
        "report.html",
        "lint.json",
    }


@pytest.mark.parametrize(
    ("name", "page"), [("audit_own_model", "own-network"), ("frontier_from_objects", "choose-defence")]
)
def test_an_example_prints_what_its_page_shows(name: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [b for b in blocks(f"docs/tutorials/{page}.md", "text") if b.mark.startswith(f"output of {name} ")]
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert not difference(capsys.readouterr().out, shown)


def test_an_attack_from_parts_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "attack_from_parts.py"), run_name="__main__")
    assert "PSNR " in capsys.readouterr().out


def test_the_first_picture_is_the_example_of_the_readme() -> None:
    (block,) = blocks("README.md", "python")
    text = (EXAMPLES / "first_picture.py").read_text(encoding="utf-8")
    assert text.partition("\n\n")[2] == block.text
    assert "`examples/first_picture.py`" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_library_example_is_short_and_dir_lists_what_it_uses() -> None:
    (block,) = blocks("README.md", "python")
    tree = ast.parse(block.text)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert len(imports) <= 4
    assert len(tree.body) - len(imports) <= 12
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lg"
    }
    assert {"audit", "attack"} <= used <= set(dir(lg))


def test_five_networks_of_a_users_own_are_audited_within_fifteen_lines_each() -> None:
    """A part that cannot be attacked is a row: none of them ends the script."""
    text = (EXAMPLES / "own_networks.py").read_text(encoding="utf-8")
    made = [n for n in ast.parse(text).body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name != "main"]
    assert len(made) == 5
    assert all(node.end_lineno is not None and node.end_lineno - node.lineno < 15 for node in made)
    said = runpy.run_path(str(EXAMPLES / "own_networks.py"))["main"](evaluations=30)
    assert list(said) == ["residual", "encoder", "no biases", "two inputs", "dict"]
    assert "1 of 1 images recovered" in said["encoder"]  # by the solve of rows and position embedding
    assert all("highest PSNR" in sentence for sentence in said.values())


def test_the_texts_of_the_docs_come_back_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's plan with fewer clients, its first setting alone."""
    monkeypatch.chdir(EXAMPLES / "texts")
    plan = read_yaml(Path("fortunes.yaml"))
    plan["data"]["batches"] = 2
    made = resolve_plan(plan | {"clients": ["fedsgd"], "defenses": ["none"]})
    for key in made.trials():
        words = run_trial(made, key, compute=lg.Compute()).record["words"]
        assert words["read"] == words["true"]
    assert len(made.source) == 160
