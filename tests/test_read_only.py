"""A disk that cannot be written to: what is read is read, all else is one line, and nothing changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from promises import Row, keep
from study.plans import plan_file

APART = shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
"""Whether a process may have mounts of its own here."""


def state(folder: Path) -> str:
    """Of all files below a folder."""
    digest = hashlib.sha256()
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(folder)}".encode() + file.read_bytes())
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not APART, reason="needs unshare, to mount a folder read-only for one process")
def test_on_a_read_only_disk_commands_read_or_say_one_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    plan = yaml.safe_load(plan_file(tmp_path).read_text())
    plan |= {"attacks": ["closed-form"], "gate": {"identified": {"max": 0.5}}}
    plan["data"]["batches"] = 3
    (disk / "plan.yaml").write_text(yaml.safe_dump(plan))
    own = [sys.executable, "-m", "leakgauge"]
    subprocess.run([*own, "audit", "plan.yaml", "-o", "out", "--workers", "1"], cwd=disk, check=True, timeout=300)
    before = state(disk)
    asked = {
        "gate out": 1,
        "audit plan.yaml -o out --workers 1": 2,
        "audit plan.yaml -o new --workers 1": 2,
        "report out": 2,
        "gate out --json out/gate.json": 2,
        "lint plan.yaml --json lint.json": 2,
    }
    failed = []
    for words, code in asked.items():
        apart = f'mount --bind "{disk}" "{disk}" && mount -o remount,ro,bind "{disk}" && cd "{disk}" && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", apart, "sh", *own, *words.split()]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300)
        said = found.stderr.strip().splitlines()
        if found.returncode != code or len(said) != (code == 2) or any("leakgauge: " not in line for line in said):
            failed.append(f"{words}: {found.returncode}, {found.stderr[-300:]}")
    lost = int(state(disk) != before)
    promise = "a command on a read-only disk reads what is there, or ends in one line"
    rows = [Row(promise, f"{len(asked)} commands", len(failed)), Row("nothing on it changes", "the same", lost)]
    keep("read-only", "tests/test_read_only.py", rows)
    assert not failed
    assert not lost
