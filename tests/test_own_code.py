"""Nothing that lies beside a received file is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

THIRD = [
    "torch",
    "numpy",
    "yaml",
    "PIL",
    "scipy",
    "skimage",
    "click",
    "rich",
    "jinja2",
    "markupsafe",
    "safetensors",
    "pydantic",
    "sqlalchemy",
    "jaxtyping",
    "matplotlib",
    "pyarrow",
    "reproduce",
    "sitecustomize",
    "torchvision",
    "pandas",
    "IPython",
    "ipykernel",
    "jax",
    "tensorflow",
    "mlx",
    "paddle",
    "triton",
    "dill",
    "lpips",
]
EARLY = [
    "importlib",
    "runpy",
    "warnings",
    "contextlib",
    "collections",
    "types",
    "functools",
    "operator",
    "keyword",
    "reprlib",
]
"""What `python -m` of any package imports before the package has a say."""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A received model in a folder where every module that Python or the tool could import also lies as a file."""
    names = {*sys.stdlib_module_names, *THIRD} - {"__main__"}
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran.txt')!r}, 'a').write('{name} ')\n")
    save_file({"1.weight": torch.ones(4, 4), "1.bias": torch.ones(4)}, tmp_path / "received.safetensors")
    return tmp_path


@pytest.fixture
def script(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command as pip installs it: Python puts its folder first on the path, not the working directory."""
    file = tmp_path_factory.mktemp("bin") / "leakgauge"
    file.write_text("import sys\nfrom leakgauge.cli import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
    return [str(file)]


def _run(folder: Path, python: Sequence[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, what was printed, and the modules of the folder that ran."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    ran = subprocess.run(
        [sys.executable, *python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    mark = folder / "ran.txt"
    return ran.returncode, ran.stdout + ran.stderr, mark.read_text() if mark.exists() else ""


def test_code_beside_a_received_model_never_runs(trapped: Path, script: list[str]) -> None:
    code, out, ran = _run(trapped, script, "inspect", "received.safetensors")
    assert ran == ""
    assert code in (0, 1), out
    assert "received.safetensors" in out


def test_run_as_a_module_nothing_is_imported_but_what_python_itself_imports(trapped: Path) -> None:
    for early in EARLY:
        (trapped / f"{early}.py").unlink()
    code, out, ran = _run(trapped, ["-m", "leakgauge"], "inspect", "received.safetensors")
    assert ran == ""
    assert code in (0, 1), out


def test_a_named_module_is_found_behind_what_is_installed(trapped: Path, script: list[str]) -> None:
    (trapped / "mine.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(4, 4))\n"
    )
    for name in ("triton", "pandas", "IPython"):  # looked for by installed packages, and may not be installed
        (trapped / f"{name}.py").unlink(missing_ok=True)
    code, out, ran = _run(trapped, script, "inspect", "received.safetensors", "--model", "mine:net")
    assert code in (0, 1), out
    assert not {"torch", "yaml", "numpy", "json", "PIL"} & set(ran.split())


def test_workers_do_not_import_from_the_working_directory(trapped: Path, script: list[str]) -> None:
    Path(script[0]).write_text(
        "import leakgauge.cli, operator\nfrom leakgauge.workers import Jobs, LocalPool\n"
        "negated = Jobs([3], print, begin=operator.itemgetter(0), ground=[operator.neg], kept='')\n"
        "if __name__ == '__main__':\n    LocalPool(1).run_all(negated)\n"
    )
    code, out, ran = _run(trapped, script)
    assert (code, out, ran) == (0, "-3\n", "")
