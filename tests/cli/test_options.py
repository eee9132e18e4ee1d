"""What a command offers is taken by what stands behind it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from leakgauge.cli import main
from leakgauge.cli.frontier import frontier_command
from leakgauge.cli.gate import gate_command
from leakgauge.cli.inspect import inspect_command
from leakgauge.study.session import run_audit


@pytest.mark.parametrize(
    ("name", "behind"),
    [("audit", run_audit), ("gate", gate_command), ("inspect", inspect_command), ("frontier", frontier_command)],
)
def test_every_option_is_taken(name: str, behind: Callable[..., Any]) -> None:
    command = main.commands[name]
    assert command.callback is not None
    handed_on = {option.name for option in command.params} - set(inspect.signature(command.callback).parameters)
    assert handed_on
    assert handed_on <= set(inspect.signature(behind).parameters)
