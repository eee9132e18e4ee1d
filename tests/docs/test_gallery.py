"""The gallery shows kept runs of the settings that stand beside its pictures."""

from __future__ import annotations

import json

import pytest
import torch

import leakgauge as lg
from docs import gallery

ROWS = json.loads(gallery.NUMBERS.read_text(encoding="utf-8"))


def test_every_setting_has_a_picture_and_a_row_of_its_own_words() -> None:
    assert list(ROWS) == list(gallery.SETTINGS)
    assert {path.stem for path in gallery.PICTURES.glob("*.png")} == set(ROWS)
    assert all(ROWS[name]["words"] == list(made().words) for name, made in gallery.SETTINGS.items())


def test_the_page_says_all_of_each_and_shows_its_lines() -> None:
    page = gallery.page()
    for name, row in ROWS.items():
        assert f"images/gallery/{name}.png" in page
        assert f"{row['seconds']:g} CPU seconds" in gallery.caption(row)
        assert f"{max(row['db']):.0f} dB" in gallery.caption(row)
        assert f"def {name}() -> Setting:" in page


@pytest.mark.parametrize("name", ["large", "adapter", "perceptron", "noisy", "known"])
def test_a_kept_run_can_be_had_again(name: str) -> None:
    torch.set_num_threads(1)
    row, truth, read = gallery.measured(name)
    assert truth.shape == read.shape
    assert row["db"] == pytest.approx(ROWS[name]["db"], rel=0.1)
    assert (row["certified"], row["words"]) == (ROWS[name]["certified"], ROWS[name]["words"])
    assert lg.metrics.PSNR()(read, truth).tolist() == pytest.approx(row["db"], abs=0.06)
