"""The action and the hook that a pipeline uses say commands and options that there are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from leakgauge.cli import main

ROOT = Path(__file__).parents[1]


def loaded(name: str) -> Any:
    if not (ROOT / name).is_file():
        pytest.skip(f"needs a clone with {name}")
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def check(words: list[str]) -> None:
    """A command of ours with options that it takes."""
    assert words[0] == "leakgauge"
    command = main.get_command(click.Context(main), words[1])
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_the_action_runs_what_there_is() -> None:
    steps = loaded("action.yml")["runs"]["steps"]
    lines = [line.strip() for step in steps for line in step["run"].splitlines()]
    ours = [line for line in lines if line.startswith("leakgauge ")]
    assert ours
    for line in ours:
        check(shlex.split(line))
    assert any("github.action_path" in line for line in lines)  # the very version that is used, released or not


def test_the_hook_runs_what_there_is() -> None:
    for hook in loaded(".pre-commit-hooks.yaml"):
        check([*shlex.split(hook["entry"]), *hook["args"]])
        assert hook["language"] == "python"
