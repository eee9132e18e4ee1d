"""Help, completion and mistakes in options are answered before torch is imported, which takes seconds."""

from __future__ import annotations

import subprocess
import sys

ASKED = """
import sys
import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from leakgauge.cli import main


def ask(*words, code):
    said = CliRunner().invoke(main, words)
    heavy = [name for name in ("torch", "numpy", "scipy", "sqlalchemy") if name in sys.modules]
    assert (said.exit_code, heavy) == (code, []), (words, heavy, said.output)


def commands(group, *path):
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


found = list(commands(main))
for path in found:
    ask(*path, "--help", code=0)
    ask(*path, "--no-such", code=2)
    shell = ShellComplete(main, {}, "leakgauge", "_LEAKGAUGE_COMPLETE")
    assert any(item.value == "--help" for item in shell.get_completions(list(path), "--"))
ask("list", "attaks", code=2)
ask("captured", "round", "--mode", "tran", code=2)
ask("audit", "--workers", "0", code=2)
print(len(found))
"""


def test_help_completion_and_mistakes_wait_for_no_heavy_module() -> None:
    ran = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= 14
