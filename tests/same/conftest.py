"""Expects what `known.txt` lists to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from same.known import known

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runxfail-known", action="store_true", help="of tests/same, those alone that are to fail")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    causes = known()
    own = [item for item in items if HERE in item.path.parents]
    for item in own:
        if item.name in causes:
            item.add_marker(pytest.mark.xfail(strict=True, reason=causes[item.name]))
    if config.getoption("--runxfail-known"):
        items[:] = [item for item in own if item.name in causes]
