"""The queue: it names items that exist, and passes over what is complete and of this commit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce import command, queue, rows  # noqa: E402


def test_every_job_is_an_item_that_can_run() -> None:
    known = command.items()
    assert all(known[job.item].measure is not None for job in queue.jobs())
    assert len(set(queue.jobs())) == len(queue.jobs())


@pytest.mark.parametrize(
    ("made", "complete", "done"), [("abc", True, True), ("abc", False, False), ("old", True, False)]
)
def test_a_complete_run_of_this_commit_is_passed_over(
    made: str, complete: bool, done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(queue, "commit", lambda: "abc")
    job = queue.Job("mkor/time")
    assert not job.done()
    run = {"complete": complete, "rows": [{"environment": {"commit": made}}]}
    (tmp_path / "mkor-time-20261122T000000.json").write_text(json.dumps(run))
    assert job.done() == done
    assert not queue.Job("mkor/time", quick=True).done()
