"""What the commands print in 80 columns, for the page *screens*: ``python docs/screens.py FOLDER``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file

from leakgauge.cli import main
from leakgauge.models import lenet

WIDTH = 80
PLAN = {
    "name": "two networks",
    "model": ["lenet", "mlp"],
    "data": {"source": "samples", "size": 16, "batches": 2},
    "defenses": ["none", {"noise": {"relative": 0.1}}],
    "attacks": ["closed-form", {"inverting-gradients": {"steps": 100}}],
    "gallery": 20,
    "gate": {"identified": {"max": 0.05}},
}
FRONTIER = {
    "name": "two defences",
    "model": {"mlp": {"hidden": [8]}},
    "data": {"size": 8, "images": 2},
    "client": "fedsgd",
    "attack": "closed-form",
    "gallery": 10,
    "defenses": {"top-k": [{"topk": {"keep": 0.1}}], "DP-SGD": [{"dp-sgd": {"norm": 1.0, "noise_multiplier": 2.0}}]},
}


def commands(folder: Path) -> dict[str, list[str]]:
    """Name of a screen → its command; `folder` gets the files that they read."""
    for name, plan in (("plan.yaml", PLAN), ("frontier.yaml", FRONTIER)):
        (folder / name).write_text(yaml.safe_dump(plan, sort_keys=False), encoding="utf-8")
    torch.manual_seed(0)
    save_file(lenet(classes=10, size=32).state_dict(), folder / "received.safetensors")
    one = ["--workers", "1"]
    return {
        "audit": ["audit", "plan.yaml", "-o", "audit", *one],
        "frontier": ["frontier", "frontier.yaml", "-o", "frontier", *one],
        "inspect": ["inspect", "received.safetensors"],
        "list": ["list", "attacks"],
        "list-dlg": ["list", "attacks", "dlg"],
        "privacy": [
            "privacy",
            "--noise-multiplier",
            "1.1",
            "--sample-rate",
            "0.01",
            "--steps",
            "1000",
            "--delta",
            "1e-5",
        ],
        "reproduce": ["reproduce"],
    }


def screen(arguments: list[str]) -> str:
    """The command and what it prints.

    Raises:
        RuntimeError: it cannot run, or a line leaves `WIDTH`.
    """
    done = CliRunner().invoke(main, arguments, env={"COLUMNS": str(WIDTH)})
    if done.exit_code not in (0, 1) or (done.exception not in (None,) and not isinstance(done.exception, SystemExit)):
        raise RuntimeError(f"{arguments}: {done.output}")
    lines = [line.rstrip() for line in done.output.splitlines()]
    wide = [line for line in lines if len(line) > WIDTH]
    if wide:
        raise RuntimeError(f"{arguments} prints more than {WIDTH} columns: {wide[0]}")
    return "\n".join([f"$ leakgauge {' '.join(arguments)}", *lines]) + "\n"


def make(to: Path) -> None:
    """All screens, a file each."""
    to = to.absolute()
    to.mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        wanted = commands(Path(folder))
        for name, arguments in wanted.items():
            os.chdir(here if name == "reproduce" else folder)
            try:
                (to / f"{name}.txt").write_text(screen(arguments), encoding="utf-8")
            finally:
                os.chdir(here)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
