"""Every reader of files knows one error: whatever is in the file, it is read or refused, in bounded time and memory."""

from __future__ import annotations

import json
import os
import random
import resource
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from damaged import READERS, Reader, damage, outcome
from leakgauge.errors import InputError
from leakgauge.models.weights import read_model
from leakgauge.update import FORMAT, Update
from promises import Row, keep, peak

SECONDS, KILOBYTES = 10.0, 1_000_000
"""Most of one file, and most that the process may grow over all of them."""


@pytest.fixture
def valid(reader: Reader, tmp_path: Path) -> Path:
    path = tmp_path / f"valid-{reader.name}"
    reader.write(path)
    assert outcome(reader, path) == "read"
    return path


@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.name)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_file_is_read_or_refused(reader: Reader, valid: Path, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "damaged" / reader.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(damage(valid.read_bytes(), random.Random(seed)))
    assert outcome(reader, path) in ("read", "refused")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    """`LEAKGAUGE_DAMAGED` is the number a kind."""
    each, began_with = int(os.environ.get("LEAKGAUGE_DAMAGED", "400")), peak()
    rows: list[Row] = []
    failed: dict[str, list[str]] = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for reader in READERS:
        path = tmp_path / reader.name.replace(".", "-") / reader.name
        path.parent.mkdir()
        reader.write(path)
        data, wrong, slowest, refused = path.read_bytes(), failed.setdefault(reader.name, []), 0.0, 0
        for seed in range(each):
            path.write_bytes(damage(data, random.Random(seed)))
            began = time.process_time()
            found = outcome(reader, path)
            slowest = max(slowest, time.process_time() - began)
            refused += found == "refused"
            if found not in ("read", "refused"):
                wrong.append(f"{seed}: {found}")
        wrong += [f"slowest {slowest:.1f} s"] if slowest > SECONDS else []
        tried = f"{each}, of which {refused} were refused"
        cost = f"slowest {slowest:.2f} s"
        rows.append(Row(f"a damaged `{reader.name}` is read, or refused in one line", tried, len(wrong), cost))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    rows.append(
        Row("memory is bounded", f"{each * len(READERS)} files", int(grown > KILOBYTES), f"{began_with} to {peak()}")
    )
    keep("damaged-files", "tests/test_damaged_files.py", rows)
    assert not any(failed.values()), failed
    assert grown < KILOBYTES


def _sent(path: Path, **changes: object) -> Path:
    """An update file whose header says something else, with a checksum that agrees or none."""
    tensors = {"update/w": torch.ones(3)}
    header = {"kind": "delta", "example_count": 4, "protocol": {}} | changes
    meta = {"format": FORMAT, "header": json.dumps(header), "order": json.dumps({"update": ["w"], "buffer": None})}
    save_file(tensors, path, meta)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"example_count": n}, "has an example count of") for n in (-1, 0, 1.5, "x", True, [1])]
    + [({"protocol": facts}, "are not text") for facts in (3, {"lr": 1})]
    + [({"kind": "other"}, "has a header that cannot be read")],
    ids=str,
)
def test_an_update_says_only_what_an_update_can(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Update.load(_sent(tmp_path / "u.safetensors", **changes))
    assert Update.load(_sent(tmp_path / "v.safetensors")).header.example_count == 4


def test_an_update_between_two_names_of_one_model_is_refused() -> None:
    state = {"w": torch.ones(3)}
    with pytest.raises(InputError, match="shares its memory"):
        Update.between(state, state)
    with pytest.raises(InputError, match="zero"):
        Update.between(state, {"w": torch.ones(3)})


@pytest.mark.parametrize("inside", [lambda w: [w], lambda w: {"w": w}, lambda w: {"model": {"w": w}}])
def test_a_large_file_may_hold_what_it_says(inside: Any, tmp_path: Path) -> None:
    """3 MB of numbers, whichever way they are kept; the same as a view of one number are refused."""
    torch.save(inside(torch.rand(800_000)), tmp_path / "m.pt")
    (tensor,) = read_model(tmp_path / "m.pt", "state").values()
    assert len(tensor) == 800_000
    torch.save(inside(torch.rand(1).expand(800_000)), tmp_path / "view.pt")
    with pytest.raises(InputError, match="many times those of the file"):
        read_model(tmp_path / "view.pt", "state")
