"""The page on defences is made from measured rows, and its words follow from its numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.defences import items as defences  # noqa: E402
from reproduce.defences import limit as defences_limit  # noqa: E402
from reproduce.defences import page as defences_page  # noqa: E402


def test_the_page_of_the_docs_has_every_setting_or_says_that_it_was_not_measured() -> None:
    page = defences_page.page()
    measured = [setting for setting in defences.SETTINGS if not setting.label.startswith("none")]
    assert all(f"| {setting.label} |" in page or f"`{setting.label}`" in page for setting in measured)


def test_every_registered_defence_has_a_row_or_a_reason() -> None:
    from leakgauge.registry import DEFENSES

    shown = " ".join(setting.label for setting in defences.SETTINGS)
    absent = {entry.name for entry in DEFENSES if entry.name not in shown}
    assert absent == set(defences_page.NOT_MEASURED) | {"none"}


@pytest.mark.parametrize(
    ("medians", "words"),
    [
        ((30, 15, 25, 12, 9), "flatters it by 9.0 dB"),
        ((30, 29, 29.5, 12, 0.4), "no protection"),
        ((30, 13, 13.5, 12, 0.6), "not recovered"),
        ((30, 20, 22.5, 12, 1.0), "worth +1.0 dB"),
        ((30, 20, 19, 12, -1.0), "worth -1.0 dB"),
    ],
)
def test_the_reading_in_words(medians: tuple[float, ...], words: str) -> None:
    assert words in defences_page.verdict(*medians)


def test_the_truth_chooses_no_worse_weight_than_the_counter() -> None:
    for row in defences_limit.rows():
        assert {f"weight {w:g}" for w in defences_limit.WEIGHTS} <= set(row)
    lines = list(defences_limit.section())[2:]
    assert len(lines) == len(defences_limit.SETTINGS)
    for line in lines:
        naive, adapted, best, gain, most, _ = map(float, line.split("|")[3:-1])
        assert adapted <= best
        assert gain <= most
        assert naive > 0
