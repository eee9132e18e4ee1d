"""What a received file can make its reader do: nothing but read it. Every socket, process and file is watched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostile import HOSTILE
from promises import Row, keep

READ = {"entries that climb", "a capture audited", "source of an app"}
"""Hostile, and of use all the same: what is in them is read, and nothing else."""


def watched(each: int, folder: Path) -> dict[str, Any]:
    """Of a process of its own, as a hook cannot be taken away again."""
    script = Path(__file__).with_name("watched.py")
    command = [sys.executable, str(script), str(each)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("each", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_hostile_files_open_no_socket_start_no_process_and_read_nothing_else(each: int, tmp_path: Path) -> None:
    found = watched(each, tmp_path)
    tried, wrong = found["tried"], sum(found["seen"].values()) + len(found["made"])
    promise = "a received file opens no socket, starts no process, and has nothing read or written beside it"
    keep(
        "hostile-files", "tests/test_hostile.py", [Row(promise, f"{tried} files, {len(HOSTILE)} made to do so", wrong)]
    )
    assert found["seen"] == {}
    assert found["made"] == []
    assert found["said"] == {name: "read" if name in READ else "refused" for name in HOSTILE}
    assert not list(tmp_path.iterdir())


def test_the_hook_sees_what_it_must(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import watched, os, socket, subprocess\n"
        "sys.addaudithook(watched.hook); watched.is_watching = True\n"
        "open('/etc/passwd').close(); os.system('true'); subprocess.run(['true']); socket.socket().close()\n"
        "watched.is_watching = False; print(sorted(key.split()[0] for key in watched.seen))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
    )
    for event in ("open", "os.system", "subprocess.Popen", "socket.__new__"):
        assert event in done.stdout
