"""The names the package promises."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import leakgauge
from leakgauge.errors import extra

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", leakgauge.__all__)
def test_every_promised_name_is_there(name: str) -> None:
    assert getattr(leakgauge, name) is not None


def test_dir_shows_what_is_promised() -> None:
    assert set(leakgauge.__all__) == set(dir(leakgauge))
    assert {"Task", "audit", "attack", "attacks", "servers"} <= set(dir(leakgauge))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, leakgauge; dir(leakgauge); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="attribute Nothing"):
        _ = leakgauge.Nothing


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run([sys.executable, "-m", "leakgauge", "no-such"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("leakgauge: No such command 'no-such'")


@pytest.mark.parametrize(
    ("origin", "way"),
    [
        ('{"dir_info": {"editable": true}, "url": "file:///somewhere"}', '-c constraints.txt -e ".[dp]" in the clone'),
        (None, "'leakgauge[dp]'"),
    ],
)
def test_an_extra_is_named_as_the_installation_at_hand_takes_it(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, way: str
) -> None:
    """It was named as of an index, where nothing is published; README installs a clone."""
    found = SimpleNamespace(read_text=lambda _: origin)
    monkeypatch.setattr("leakgauge.errors.distributions", lambda **_: [found])
    assert extra("dp") == f"pip install {way}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert origin is None or f"pip install {way.removesuffix(' in the clone')}" in readme


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["title"], cited["version"]) == ("leakgauge", leakgauge.__version__)


def test_the_conda_recipe_is_of_this_version_and_needs_what_the_wheel_needs() -> None:
    recipe = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    assert f'version = "{leakgauge.__version__}"' in recipe
    listed = set(re.findall(r"^    - ([\w-]+ >=[\d.]+)$", recipe.split("  run:")[1].split("test:")[0], re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    other = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    wheel = [needed.partition(">=") for needed in project["dependencies"]]
    names = {f"{other.get(name, name)} >={lowest}" for name, _, lowest in wheel}
    assert listed == names | {f"python {project['requires-python']}"}


def test_what_tests_and_examples_import_is_installed_for_development() -> None:
    """What is not is skipped, and so never run."""
    imported = set()
    for file in [*ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/**/*.py"), ROOT / "benchmarks" / "brought.py"]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
                imported |= {str(a.value).partition(".")[0] for a in node.args if isinstance(a, ast.Constant)}
    folders = (ROOT / folder for folder in ("", "src", "tests", "examples", "benchmarks"))
    own = {file.name.removesuffix(".py") for folder in folders for file in folder.iterdir()}
    makers = {name: made[0] for name, made in packages_distributions().items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (ours,) = (line for line in extras["dev"] if line.startswith("leakgauge["))
    lines = [*project["dependencies"], *extras["dev"], *(s for e in re.findall(r"\w+", ours)[1:] for s in extras[e])]
    named = {re.split(r"[\[>=]", line)[0].lower() for line in lines} | {"nvflare"}  # by the Makefile, without servers
    foreign = imported - set(sys.stdlib_module_names) - own
    assert {makers.get(name, name).lower() for name in foreign} - named == set()


def test_a_release_runs_the_same_check_as_contributors() -> None:
    for name in ("ci", "publish"):
        steps = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))["jobs"]
        assert any(step.get("run") == "make release-check" for job in steps.values() for step in job["steps"])
