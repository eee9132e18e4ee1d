"""The notebooks of the papers: their pages print what they show, and the files of `examples` are those pages."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator

import pytest
from matplotlib import pyplot as plt

import leakgauge as lg
from docs import notebooks
from docs.pages import ROOT, blocks, run

PAPERS = {"ci-net", "inverting-gradients", "mkor", "qian-hansen", "rog"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No window, and no figure that stays."""
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def test_there_is_a_notebook_for_each_paper_and_for_nothing_else() -> None:
    assert set(notebooks.PAGES) == PAPERS
    assert {path.stem for path in (ROOT / "examples/notebooks").glob("*.ipynb")} == PAPERS


@pytest.mark.notebook
@pytest.mark.parametrize("name", notebooks.PAGES)
def test_a_page_prints_what_it_shows(name: str) -> None:
    names = run([f"docs/papers/{name}.md"])
    assert names["FULL"] is False
    assert len(names["figure"].axes) > 4


@pytest.mark.parametrize("name", notebooks.PAGES)
def test_a_notebook_is_its_page(name: str) -> None:
    text = notebooks.file(name).read_text(encoding="utf-8")
    assert text == notebooks.notebook(name), f"run `python docs/notebooks.py {name}`"
    cells = json.loads(text)["cells"]
    assert cells[0]["source"][0].startswith("# ")
    assert [cell["cell_type"] for cell in cells].count("code") == 1 + len(
        [block for block in blocks(f"docs/papers/{name}.md", "python") if block.mark == "run"]
    )
    assert "image/png" in [cell for cell in cells if cell["cell_type"] == "code"][-1]["outputs"][-1]["data"]


@pytest.mark.parametrize("name", notebooks.PAGES)
def test_a_notebook_takes_parts_from_public_modules_and_has_one_switch(name: str) -> None:
    code = "\n".join(block.text for block in blocks(f"docs/papers/{name}.md", "python"))
    assert code.count("FULL = False\n") == 1
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs/reference/api").glob("*.md"))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leakgauge"):
            assert f"automodule:: {node.module}\n" in pages, node.module


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.PAGES)
def test_the_full_size_begins(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With twelve gradient evaluations an attack: the networks are built, updates made, and pictures drawn."""
    attack = lg.attack
    monkeypatch.setattr("leakgauge.face.attack", lambda *a, **k: attack(*a, **k, budget=lg.Budget(12)))
    names = {"__name__": "page"}
    for block in blocks(f"docs/papers/{name}.md", "python"):
        exec(compile(block.text.replace("FULL = False", "FULL = True"), str(block), "exec"), names)
    assert names["figure"].axes
