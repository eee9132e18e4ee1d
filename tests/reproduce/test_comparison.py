"""What `leakgauge reproduce ITEM --kept` prints can be read in 80 columns, whatever was kept."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.comparison import HEAD, beside, lines, measured_text, wrapped  # noqa: E402
from reproduce.item import Item, State  # noqa: E402

from leakgauge.cli import main  # noqa: E402
from reproduce import command  # noqa: E402

ITEMS = command.items()


def record(setting: str, metric: str, value: float, seconds: float, doubt: str = "", attack: str = "MKOR") -> dict:
    measured = {"mean": value, "low": value - 1, "high": value + 1}
    names = {"setting": setting, "attack": attack, "metric": metric, "claimed": None, "measured": measured}
    return names | {"seeds": [0], "gradient_evaluations": 7, "seconds": seconds, "doubt": doubt}


def own(*records: dict, width: int = 80) -> list[str]:
    return list(lines(Item(paper="mkor", name="time", state=State.NOT_RUN, note="why"), list(records), width))


@pytest.mark.parametrize("width", [80, 60])
def test_every_kept_item_fits_and_breaks_no_word(width: int) -> None:
    for name, item in ITEMS.items():
        records = command.last(item)
        shown = list(lines(item, records, width))
        assert max(map(len, shown)) <= width, name
        words = set(" ".join(shown).split())
        for row in beside(item, records):
            for text in (row["setting"], row["metric"], row["published"], measured_text(row["measured"])):
                assert set(text.split()) <= words, (name, text)
        doubts = {row["doubt"] for row in beside(item, records) if row["measured"] is not None} - {"", None}
        flat = " ".join(" ".join(shown).split())
        assert all(" ".join(doubt.split()) in flat for doubt in doubts), name


def test_every_row_has_one_line_at_80_columns_with_its_numbers_under_their_heads() -> None:
    for name, item in ITEMS.items():
        records = command.last(item)
        shown = list(lines(item, records, 80))
        rows = beside(item, records)
        head = next((line for line in shown if line.endswith(HEAD[2])), "")
        left, right = (head.find(word) for word in HEAD[1:])
        cells = {(line.split()[0], line[left:right].strip(), line[right:]) for line in shown if line.startswith("    ")}
        for row in rows:
            wanted = (row["metric"].split()[0], row["published"], measured_text(row["measured"]))
            assert wanted in cells, (name, row)


@pytest.mark.parametrize("arguments", [["rog/values15", "--kept"], ["mkor/table2", "--kept"], ["mkor"], ["rog"], []])
def test_a_terminal_and_a_pipe_show_the_same_lines_of_80_columns(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    plain = CliRunner().invoke(main, ["reproduce", *arguments], env={"COLUMNS": "80"}).output
    coloured = CliRunner().invoke(main, ["reproduce", *arguments], env={"COLUMNS": "80", "FORCE_COLOR": "1"}).output
    assert max(map(len, plain.splitlines())) <= 80
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_rows_of_an_attack_that_cost_or_doubt_differently_say_so_each() -> None:
    shown = own(record("s", "PSNR", 20.0, 3.5, "few steps"), record("s", "SSIM", 0.5, 250.4, "no [clamp]"))
    assert "  MKOR: 1 seed, 3.5 s; doubt 1" in shown
    assert "  MKOR: 1 seed, 250 s; doubt 2" in shown
    assert shown[-2:] == ["1  few steps", "2  no [clamp]"]
    console = Console(record=True, width=80)
    command._print(console, shown)
    assert "no [clamp]" in console.export_text()


def test_what_was_not_measured_stands_beside_what_was_and_alone_says_so() -> None:
    records = [record("LeNet5", "max SSIM", 0.5, 2.0, attack="DLG")]
    shown = list(lines(ITEMS["mkor/table2"], records, 80))
    at = shown.index("  DLG: 1 seed, 2 s")
    assert [line.split() for line in shown[at + 1 : at + 3]] == [
        ["max", "SSIM", "0.13", "0.5", "[-0.5,", "1.5]"],
        ["avg", "SSIM", "0.02", "–"],
    ]
    assert "  iDLG: not measured" in shown


def test_a_metric_wider_than_its_room_wraps_between_words() -> None:
    shown = own(record("s", "a metric of very many words that leave the line " * 2, 1.0, 0.0), width=60)
    assert max(map(len, shown)) <= 60
    assert any(re.fullmatch(r"    a metric .* –          1 \[0, 2\]", line) for line in shown)


@pytest.mark.parametrize(
    ("width", "expected"),
    [(9, ["  of", "    4 800", "    steps"]), (12, ["  of 4 800", "    steps"]), (80, ["  of 4 800 steps"])],
)
def test_a_thousand_stays_on_one_line_and_a_hanging_line_keeps_the_indent(width: int, expected: list[str]) -> None:
    assert wrapped("  of 4 800 steps", width, hanging="  ") == expected
