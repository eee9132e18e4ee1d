"""Items: every published number has a place, and what is printed is what was measured."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.comparison import beside  # noqa: E402

from leakgauge.cli import main  # noqa: E402
from leakgauge.errors import InputError  # noqa: E402
from reproduce import command, item, rows, tables  # noqa: E402


def measured(setting: str, attack: str, metric: str, value: float) -> rows.Row:
    return rows.Row(
        paper="mkor",
        row="time",
        setting=setting,
        attack=attack,
        metric=metric,
        claimed=None,
        per_image=[[value, value + 2]],
        seeds=[0, 1],
        gradient_evaluations=0,
        seconds=1.5,
    )


@pytest.mark.parametrize("paper", command.PAPERS)
def test_every_published_table_has_an_item_and_the_other_way_round(paper: str) -> None:
    published = tomllib.loads((tables.PUBLISHED / f"{paper}.toml").read_text())
    assert set(published) == {i.name for i in command.items().values() if i.paper == paper}
    for table in published.values():
        assert all(len(values) == len(table["metrics"]) for values in table["rows"].values())


def test_what_is_not_run_or_reduced_says_why() -> None:
    for name, found in command.items().items():
        assert found.state is item.State.REPRODUCED or found.note, name


def test_an_item_cannot_claim_what_it_does_not_run() -> None:
    with pytest.raises(ValueError, match="reproduced"):
        item.Item(paper="mkor", name="time", state=item.State.REPRODUCED, note="")


def test_published_cells_stand_beside_their_measurement_and_empty_ones_stay() -> None:
    asked = item.Item(paper="mkor", name="time", state=item.State.NOT_RUN, note="n")
    found = [measured("VGG16", "MKOR", "seconds", 3.0).record(), measured("ours", "MKOR", "seconds", 9.0).record()]
    lines = beside(asked, found)
    assert [(x["setting"], x["published"], x["measured"]["mean"]) for x in lines] == [
        ("VGG16", "120", 4.0),
        ("ours", "–", 10.0),
    ]
    assert beside(asked, [])[0]["measured"] is None


def test_empty_published_cells_are_none_and_not_numbers() -> None:
    cells = command.items()["mkor/table2"].cells
    empty = [c for c in cells if c.claimed is None]
    assert {(c.setting, c.attack) for c in empty} == {("LeNet5", "class fishing"), ("modified", "class fishing")}
    assert all(c.text == "–" for c in empty)
    assert any(math.isclose(c.claimed or 0, 12.79) for c in cells)


def test_a_run_is_kept_printed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results")

    def measure(inputs: item.Inputs):
        assert inputs.quick
        yield measured("VGG16", "MKOR", "seconds", 3.0)

    made = item.Item(paper="mkor", name="time", state=item.State.REDUCED, note="why", measure=measure)
    monkeypatch.setattr(command, "items", lambda: {"mkor/time": made})
    console = Console(record=True, width=160)
    out = tmp_path / "o.json"
    command.reproduce("mkor/time", data=tmp_path, quick=True, json_file=out, console=console)
    text = console.export_text()
    assert "120" in text
    assert "4" in text
    assert "why" in text
    document = json.loads(out.read_text())
    assert document["rows"][0]["measured"]["mean"] == 4.0
    assert len(list((tmp_path / "results").glob("mkor-time-quick-*.json"))) == 1


def test_unknown_items_and_missing_data_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mkor/table2"):
        command.reproduce("mkor/tabel2", data=tmp_path, quick=True, json_file=None, console=Console(quiet=True))
    with pytest.raises(InputError, match="data"):
        command.reproduce("mkor/table2", data=tmp_path / "no", quick=True, json_file=None, console=Console(quiet=True))


def test_outside_a_clone_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(ROOT))])
    for name in [n for n in sys.modules if n == "reproduce" or n.startswith("reproduce.")]:
        monkeypatch.delitem(sys.modules, name)
    run = CliRunner().invoke(main, ["reproduce"])
    assert run.exit_code == 2
    assert "clone of the repository" in run.output
