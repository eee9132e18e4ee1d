"""What the kept table of defences must show: knowing a defence never hurts, and opens what it should."""

from __future__ import annotations

import statistics
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.defences.items import SETTINGS, Setting, rows  # noqa: E402
from reproduce.defences.page import MARGIN  # noqa: E402

from leakgauge.intervals import mean_interval  # noqa: E402


@cache
def values(label: str, examples: int) -> dict[str, list[float]]:
    """By client: both attackers, the ceiling and the mean picture."""
    found = {(r["defense"], r["image"], r["seed"]): r for r in rows()}
    bare = Setting("none", examples).label
    own = [r for r in found.values() if r["defense"] == label and (bare, r["image"], r["seed"]) in found]
    table = {key: [statistics.fmean(r[key]) for r in own] for key in ("naive", "adapted", "floor")}
    table["ceiling"] = [statistics.fmean(found[bare, r["image"], r["seed"]]["ceiling"]) for r in own]
    return table


DEFENDED = [s for s in SETTINGS if not s.label.startswith("none") and values(s.label, s.examples)["naive"]]


def gains(setting: Setting) -> list[float]:
    found = values(setting.label, setting.examples)
    return [a - n for a, n in zip(found["adapted"], found["naive"], strict=True)]


def test_the_table_is_there() -> None:
    assert len(DEFENDED) >= 35
    assert all(len(gains(s)) == 30 for s in DEFENDED), "ten images by three seeds"


@pytest.mark.parametrize("setting", DEFENDED, ids=lambda s: s.label)
def test_knowing_the_defence_is_never_worse_beyond_the_interval(setting: Setting) -> None:
    interval = mean_interval(gains(setting))
    assert interval.high is not None
    assert interval.high >= 0


NEARLY_A_LIKELIHOOD = {
    "clip(norm=1.0) + noise(sigma=0.001)",
    "laplace(relative=0.1)",
    "noise(relative=0.1)",
    "qsgd(levels=7)",
    "quantise(levels=7)",
}
"""Within 3 to 6 dB of no defence, where the naive cosine nearly is the likelihood; `reproduce.defences.limit` shows
that no weight of the prior, the truth choosing it, makes knowing them worth 2 dB in the median."""


@pytest.mark.parametrize("name", ["soteria", "precode"])
def test_soteria_and_precode_are_opened_at_the_papers_strengths(name: str) -> None:
    found = [s for s in DEFENDED if s.label.startswith(name)]
    assert found
    for setting in found:
        m = {k: statistics.median(v) for k, v in values(setting.label, setting.examples).items()}
        assert m["adapted"] >= m["floor"] + MARGIN, setting.label


def test_it_is_worth_two_decibels_where_it_should_be() -> None:
    little = set()
    for setting in DEFENDED:
        m = {k: statistics.median(v) for k, v in values(setting.label, setting.examples).items()}
        due = m["naive"] <= m["ceiling"] - MARGIN and m["adapted"] >= m["floor"] + MARGIN
        if due and statistics.median(gains(setting)) < MARGIN:
            little.add(setting.label)
    assert little == NEARLY_A_LIKELIHOOD
