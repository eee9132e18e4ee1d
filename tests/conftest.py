"""Threads, determinism and fixtures that all tests share."""

from __future__ import annotations

import os

# Before torch is imported: two OpenMP threads on a busy two-core machine are over ten times slower than one.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hashlib  # noqa: E402
import random  # noqa: E402
from collections import defaultdict  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
torch.set_flush_denormal(True)

settings.register_profile("leakgauge", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("leakgauge")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """A test draws the same numbers alone, in any order and on any worker."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator, fresh for each test."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with data sets and weights, from LEAKGAUGE_SHARED or beside the repository.

    Users do not have it: without it a test is skipped, except in CI, where it fails.
    """
    beside = Path(__file__).parents[2] / "shared"
    folder = Path(os.environ.get("LEAKGAUGE_SHARED", beside))
    if not (folder / "data").is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("needs the shared data folder")
        pytest.skip("needs the shared data folder")
    return folder


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests of many cells some are fast (cells.yaml), drawn by a hash of their names, others slow. Slow tests
    take minutes on a quiet machine, and much longer on a busy one."""
    cells = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        cells[item.nodeid.split("[")[0].removeprefix("tests/")].append(item)
    for file, kept in yaml.safe_load((Path(__file__).parent / "cells.yaml").read_text()).items():
        for name, most in kept.items():
            drawn = sorted(cells[f"{file}::{name}"], key=lambda item: hashlib.sha256(item.nodeid.encode()).digest())
            for item in drawn[most:]:
                item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(3600))
