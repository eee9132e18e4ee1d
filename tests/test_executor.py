"""What a worker of a cluster checks before it takes a job; sweeps on a real one are in `test_cluster`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from leakgauge import __version__, executor
from leakgauge.errors import InputError
from leakgauge.workers import Jobs


@pytest.mark.parametrize("key", ["leakgauge", "torch", "code"])
def test_a_worker_with_other_code_refuses_by_name(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    terms = {"leakgauge": __version__, "torch": torch.__version__, "code": executor.code()} | {key: "another"}
    words = executor._task()([], b"", terms, (str(tmp_path), False), None)
    assert isinstance(words, str)
    assert "has other code" in words
    assert f"{key} " in words
    assert "the driver has another" in words


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no-such-host.invalid:6379", "127.0.0.1:port"])
def test_where_no_cluster_listens_is_one_line_at_once(address: str) -> None:
    """Ray itself goes on asking for minutes."""
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=f"no cluster answers at '{address}'"):
        executor.RayCluster(address).run_all(Jobs([], print, begin=print, ground=None, kept="trials"))
