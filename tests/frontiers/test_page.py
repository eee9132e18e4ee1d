"""The page of a frontier: what it says, and how it looks in a browser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from frontiers.rows import LABELS, leaking, report, row
from leakgauge.frontiers.results import Leakage, RowResult
from leakgauge.frontiers.session import RowLine, dots, line_of, render, size
from report.fixture import text_of

CHROMIUM = Path(shutil.which("chromium") or "chromium")


def _rows(*, accuracy: bool = True) -> list[RowResult]:
    def known(value: float) -> float | None:
        return value if accuracy else None

    return [
        row("undefended", "none", known(0.60), (20, 30.0)),
        row("noise", "noise(relative=0.1)", known(0.59), (9, 19.0), (18, 25.0), strength=0),
        row("noise", "noise(relative=1)", known(0.52), (3, 12.0), (6, 15.0), strength=1, counter=None),
        row("dp", "dp-sgd(norm=1)", known(0.41), (0, 9.0), epsilon=3.25),
    ]


def _page(rows: list[RowResult]) -> str:
    return render(report(rows))


@pytest.fixture(scope="module")
def html() -> str:
    return _page(_rows())


def test_a_row_in_the_terminal_has_the_numbers_of_the_report() -> None:
    met = row("dp", "dp-sgd(norm=1)", 0.4137, (3, 9.0), (7, 12.51), epsilon=3.257)
    assert line_of(met) == RowLine("dp-sgd(norm=1)", "41.4 %", "3/20", "7/20", "15.5 dB", "3.26", "1.50 ×")
    bare = replace(row("noise", "noise(relative=1)", None, (0, 9.0)), leakage=Leakage(None, None), cost=None)
    assert line_of(bare) == RowLine("noise(relative=1)", "–", "–", "–", "–", "none", "–")


def test_every_row_and_every_column_reaches_the_page(html: str) -> None:
    text = text_of(html)
    for words in ("no defence", "noise(relative=0.1)", "dp-sgd(norm=1)", "60.0 %", "18 of 20", "9 of 20"):
        assert words in text, words
    assert "3.25 one example, rdp" in text
    assert "500 B 50 %" in text
    assert "1.50 ×" in text
    assert "support-mask, because the wire shows it." in text
    assert "no counter is known" in text
    assert "A server that prepares the model" in text
    assert "The running statistics of BatchNorm" in text
    assert "not in this plan: prune." in text
    assert "about 20 pictures a row" in text
    assert "on the frontier: no row that is as accurate leaks less" in text
    assert report(_rows()).recommendation.headline in text
    assert "None" not in text.replace("None of 20 identified", "")
    assert "nan" not in text.lower().split()


def test_only_rows_with_an_epsilon_have_a_guarantee(html: str) -> None:
    section = text_of(html[html.index('id="privacy"') : html.index('id="counters"')])
    assert section.count("By the guarantee") == 1
    assert section.count("no clip and noise") == 3


def test_the_plot_is_there_with_its_numbers(html: str) -> None:
    plots = html[html.index('id="plots"') : html.index('id="table"')]
    assert plots.count("<svg") == 1
    assert "test accuracy" in plots
    assert "naive attacker" in plots
    assert "undefended" in plots
    assert "Knowing the defence helped the attacker in 2 of 3 rows." in text_of(plots)


def test_without_accuracy_the_page_says_so_and_the_table_has_the_numbers() -> None:
    html = _page(_rows(accuracy=False))
    text = text_of(html)
    assert "Accuracy was not measured" in text
    assert "not measured no data" in text
    assert "There is nothing to plot" in text
    assert "<svg" not in html
    assert "18 of 20" in text


def test_a_row_without_a_result_does_not_stop_the_page() -> None:
    rows = _rows()
    rows[1] = leaking(rows[1], "adapted")
    rows[2] = leaking(rows[2], "naive", identified=None, psnr=None, null_psnr=None)
    assert "no result" in text_of(_page(rows))
    none = [replace(r, leakage=Leakage(None, None)) for r in rows]
    assert "There is nothing to plot" in text_of(_page(none))


def test_nothing_is_loaded_from_elsewhere_and_ids_are_unique(html: str) -> None:
    assert not re.search(r"https?://", html)
    for address in re.findall(r"\b(?:src|href)=\"([^\"]*)\"", html):
        assert address.startswith(("#", "data:")), address
    ids = re.findall(r"\bid=\"([^\"]+)\"", html)
    assert len(ids) == len(set(ids))
    assert _page(_rows()) == html, "equal input, equal bytes"


def test_hostile_names_stay_text() -> None:
    rows = _rows()
    rows[1] = replace(rows[1], family="<script>alert(1)</script>", label="<script>alert(1)</script>")
    assert "<script>alert" not in _page(rows)


def test_sizes_have_units_that_fit() -> None:
    assert [size(n).replace("\u00a0", " ") for n in (0, 999, 2030, 1_500_000, 4e9)] == [
        "0 B",
        "999 B",
        "2.03 kB",
        "1.5 MB",
        "4 GB",
    ]


def test_what_a_row_leaks_is_that_under_the_stronger_attacker() -> None:
    rows = _rows()
    for who, f1 in (("naive", 0.875), ("adapted", 0.125)):
        rows[1] = leaking(rows[1], who, label_f1=replace(LABELS, mean=f1))
    cells = re.findall(r'<td data-v="(0\.\d+)">0\.(?:88|12)<span', _page(rows))
    assert cells == ["0.875"], "labels too"
    wrong_way = dots([row("a", "a", 0.5, (9, 20.0), (3, 12.0))])[0]
    assert wrong_way.stronger == wrong_way.naive != wrong_way.adapted


@pytest.mark.page
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_draws_in_a_browser(html: str, width: int, tmp_path: Path) -> None:
    if not CHROMIUM.exists():
        pytest.fail("needs chromium") if os.environ.get("CI") == "true" else pytest.skip("needs chromium")
    from PIL import Image

    file, shot = tmp_path / "page.html", tmp_path / "shot.png"
    file.write_text(html, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000"]
    command = [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},1600"]
    subprocess.run([*command, f"--screenshot={shot}", file.as_uri()], check=True, capture_output=True, timeout=120)
    with Image.open(shot) as image:
        assert image.size[0] >= width
        colours = image.convert("RGB").getcolors(maxcolors=1 << 22)
    assert len(colours) > 50, "the plots are drawn in several colours"
