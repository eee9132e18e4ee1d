"""A folder to work in, from which modules can be imported and which leaves no trace in the registries."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leakgauge.cli.listing import KINDS, registry_of


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, and the first on the module path, for one test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in map(registry_of, KINDS):
        list(registry)  # loads what registers itself
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("my_package", "hospital"):
            del sys.modules[name]
