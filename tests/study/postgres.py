"""A PostgreSQL cluster of a test's own, from the machine's package."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def binaries() -> Path | None:
    """Where initdb and pg_ctl are; Debian keeps them off the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else None if on_path is None else Path(on_path).parent


@contextmanager
def cluster() -> Iterator[str]:
    """The URL of an empty database. The server refuses to run as root, so root lends it the user ``postgres``."""
    pytest.importorskip("psycopg")
    where = binaries()
    user = "postgres" if os.geteuid() == 0 else None
    known = user is None or user in {entry.pw_name for entry in pwd.getpwall()}
    if where is None or not known:
        pytest.skip("needs PostgreSQL's server (Debian: postgresql), and as root its user postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Sockets have short names, and the server's user must get there.
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if user is not None:
        shutil.chown(folder, user)

    def call(*command: str) -> None:
        done = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call(f"{where}/initdb", "-D", f"{folder}/data", "-A", "trust", "-U", "team", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c shared_buffers=16MB"
        call(f"{where}/pg_ctl", "-D", f"{folder}/data", "-w", "-o", options, "-l", f"{folder}/log", "start")
        yield f"postgresql+psycopg://team@127.0.0.1:{port}/postgres"
    finally:
        stop = [f"{where}/pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "stop"]
        subprocess.run(stop, user=user, cwd="/", capture_output=True, check=False, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)
