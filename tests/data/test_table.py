"""Tables: cells to numbers and back in the file's own units, and what a page and a report show of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.data import Table, open_source
from leakgauge.data.table import table as read_table
from leakgauge.errors import InputError
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from study.plans import document, page_of

PENGUINS = Path(__file__).parents[2] / "examples" / "tables" / "penguins.csv"
TEXT = "who;age;smokes;dose;ill\nanna;31;no;0.25;yes\nbert;77;yes;1.5;no\ncarl;40;no;-0.5;no\n"


def table(folder: Path, text: str = TEXT, **options: Any) -> Table:
    (folder / "t.csv").write_text(text, encoding="utf-8")
    return read_table(**{"path": str(folder / "t.csv"), "separator": ";", "ids": ("who",), **options})


def test_numbers_are_scaled_and_categories_are_one_hot(tmp_path: Path) -> None:
    found = table(tmp_path)
    assert found.columns == ("age", "smokes", "dose")
    assert found.shape == (4,)
    expected = torch.tensor([[0, 1, 0, 0.375], [1, 0, 1, 1], [9 / 46, 1, 0, 0]])
    assert torch.allclose(found.read([0, 1, 2]).inputs, expected)
    assert found.labels.tolist() == [1, 0, 0]
    assert found.names([1]) == ["bert"]


def test_every_cell_comes_back_as_it_stands_in_the_file() -> None:
    found = read_table(path=str(PENGUINS), target="species", ids=("id",))
    whole = found.read(range(len(found)))
    lines = [line.split(",") for line in PENGUINS.read_text().splitlines()]
    place = [lines[0].index(name) for name in found.columns]
    for read, line in zip(found.in_words(whole.inputs), lines[1:], strict=True):
        told = [line[i] for i in place]
        assert [r if r.isalpha() else float(r) for r in read] == [t if t.isalpha() else float(t) for t in told]
    assert found.classes == 3
    assert sorted(set(whole.labels.tolist())) == [0, 1, 2]


@given(st.lists(st.integers(-(10**9), 10**9).map(lambda v: v / 1000), min_size=2, max_size=8))
def test_numbers_of_any_range_come_back(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    folder = tmp_path_factory.mktemp("t")
    found = table(folder, "x;y\n" + "".join(f"{v:.3f};{i % 2}\n" for i, v in enumerate(values)), ids=())
    width = max(values) - min(values) or 1
    for row, value in zip(found.in_words(found.read(range(len(values))).inputs), values, strict=True):
        assert abs(float(row[0]) - value) <= 1e-6 * width + 5e-4  # float32, and the last decimal


def test_numbers_that_name_kinds_are_categories_where_the_plan_says_so(tmp_path: Path) -> None:
    table(tmp_path)
    found = open_source(f"csv:{tmp_path / 't.csv'}", separator=";", ids=["who"], categorical=["age"])
    assert found.read([1]).inputs[0, :3].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", {}, "holds no rows"),
        ("a;b\n", {"ids": ()}, "holds no rows"),
        ("a;b\n1;2\n1\n", {"ids": ()}, "line 3 has 1 cells, the header 2; check the separator"),
        ("a;a\n1;2\n", {"ids": ()}, "two columns of one name"),
        ("a;b\n1;x\n;y\n", {"ids": ()}, "line 3, column a is empty; fill it or leave the row out"),
        ("a;b\n1;x\nNA;y\n", {"ids": ()}, "line 3, column a is empty"),
        ("a;b\n1;x\ninf;y\n", {"ids": ()}, "column a is not finite"),
        ("a;b\n" + "".join(f"n{i};x\n" for i in range(101)), {"ids": ()}, "101 different values .* ids: "),
        (TEXT, {"target": "fate"}, r"target: names 'fate', and the columns are who, age"),
        (TEXT, {"ids": ("who", "age", "smokes", "dose")}, "ids: leaves no feature"),
        (TEXT, {"separator": ""}, "separator: is ''; give one character"),
        ('a;b\n"1;2\n', {"ids": ()}, "cannot read"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, text: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        table(tmp_path, text, **options).read([0])


def planned(**changes: Any) -> dict[str, Any]:
    data = {"source": f"csv:{PENGUINS}", "target": "species", "ids": ["id"], "batch": 2, "batches": 1}
    plan = {"name": "penguins", "model": {"mlp": {"hidden": [8]}}, "data": data, "attacks": ["peeling"], "gallery": 20}
    return plan | changes


def test_a_tables_audit_rests_on_its_file_and_on_no_module() -> None:
    """Python's own `csv` was taken for a module of the user's, and all that it imports was hashed."""
    found = resolve_plan(planned()).contents()
    assert set(found) == {"leakgauge", "torch", "data"}


def test_a_report_shows_true_and_read_in_the_tables_units(tmp_path: Path) -> None:
    store = run(resolve_plan(planned()), tmp_path / "out")
    (trial,) = (t for t in list(store.each()) if not t["control"])
    assert trial["words"]["columns"][:2] == ["island", "bill_length_mm"]
    assert trial["words"]["true"] == trial["words"]["read"]
    assert trial["words"]["true"][0][:2] == ["Dream", "46.9"]
    assert trial["words"]["match"] == [1.0, 1.0]
    page = page_of(store)
    assert '<tr class="same"><th scope="row">bill_length_mm</th><td>46.9</td><td>46.9</td></tr>' in page
    assert "100\u00a0% equal" in page


def test_counts_only_keeps_no_cell_of_anybody(tmp_path: Path) -> None:
    store = run(resolve_plan(planned()), tmp_path / "out", Running(counts_only=True))
    assert all(set(t["words"]) == {"match"} for t in list(store.each()))
    assert "46.9" not in page_of(store)


def test_a_read_that_failed_shows_none(tmp_path: Path) -> None:
    report = document(run(resolve_plan(planned(defenses=[{"noise": {"relative": 50.0}}])), tmp_path / "out"))
    (trial,) = (t for t in report["trials"] if not t["control"])
    assert trial["words"]["read"] == [None, None]
    assert trial["words"]["match"] == [0.0, 0.0]
