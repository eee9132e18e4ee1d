"""The names the package promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import leakgauge


@pytest.mark.parametrize("name", leakgauge.__all__)
def test_every_promised_name_is_there(name: str) -> None:
    assert getattr(leakgauge, name) is not None


def test_every_lazy_name_is_promised() -> None:
    lazy = {name for names in leakgauge._HOMES.values() for name in names}
    assert lazy | {"__version__"} == set(leakgauge.__all__)


def test_dir_shows_the_nouns_the_ways_in_and_the_parts() -> None:
    assert set(leakgauge.__all__) | set(leakgauge._PARTS) == set(dir(leakgauge))
    assert all(getattr(leakgauge, name) is not None for name in dir(leakgauge))


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, leakgauge; dir(leakgauge); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = leakgauge.Nothing


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run([sys.executable, "-m", "leakgauge", "no-such"], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("leakgauge: No such command 'no-such'")


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((Path(__file__).parents[1] / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["title"], cited["version"]) == ("leakgauge", leakgauge.__version__)
