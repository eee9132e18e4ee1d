"""Notebooks of the pages in `docs/papers`, one a paper: ``python docs/notebooks.py [NAME]`` runs them anew.

A page is the source. Its blocks are run in order; what they print goes into the page's blocks of outputs, the figure
that they leave behind into ``docs/images/papers``, and all of it into ``examples/notebooks/NAME.ipynb``.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from docs.pages import FENCE  # noqa: E402

PAGES = sorted(path.stem for path in (ROOT / "docs" / "papers").glob("*.md"))
INSTALL = """# Only where leakgauge is not there yet. In Colab, upload the wheel that `python -m build` makes of a clone
# (Files, on the left), or put `git+` and the clone's address in its place.
import importlib.util

if importlib.util.find_spec("leakgauge") is None:
    %pip install -q leakgauge-0.1.0-py3-none-any.whl
"""
LINK = re.compile(r"\{download\}`[^`]*`, |(?<!!)\[([^\]]*)\]\([^)]*\)")
PICTURE = re.compile(r"^!\[([^\]]*)\]\([^)]*\)\n*", re.M)


def page(name: str) -> Path:
    """The source."""
    return ROOT / "docs" / "papers" / f"{name}.md"


def picture(name: str) -> Path:
    """The figure that the last block leaves behind."""
    return ROOT / "docs" / "images" / "papers" / f"{name}.png"


def run(name: str) -> str:
    """The page with what its blocks print now; writes the picture."""
    matplotlib.use("Agg")
    text, names, printed = page(name).read_text(encoding="utf-8"), dict[str, Any](__name__="page"), ""

    def filled(block: re.Match[str]) -> str:
        nonlocal printed
        mark = block["mark"] or ""
        if mark.startswith("output"):
            return f"<!-- {mark} -->\n```{block['language']}\n{printed}```"
        if mark == "run":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(block["text"], name, "exec"), names)
            printed = out.getvalue()
        return block[0]

    made = FENCE.sub(filled, text)
    picture(name).parent.mkdir(exist_ok=True)
    names["figure"].savefig(picture(name), dpi=80, bbox_inches="tight", pad_inches=0.03, metadata={"Software": None})
    return made


def _cell(number: int, text: str, outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    cell = {"id": f"cell{number}", "metadata": {}, "source": text.strip("\n").splitlines(keepends=True)}
    if outputs is None:
        return {"cell_type": "markdown"} | cell
    return {"cell_type": "code"} | cell | {"execution_count": None, "outputs": outputs}


def notebook(name: str) -> str:
    """The page as a notebook, with its outputs and its picture."""
    text, cells, at = page(name).read_text(encoding="utf-8"), list[dict[str, Any]](), 0
    for block in FENCE.finditer(text):
        words = PICTURE.sub("", LINK.sub(r"\1", text[at : block.start()])).strip()
        at = block.end()
        if words:
            cells.append(_cell(len(cells), words))
        if len(cells) == 1:
            cells.append(_cell(1, INSTALL, []))
        if (block["mark"] or "").startswith("output"):
            said = block["text"].splitlines(keepends=True)
            cells[-1]["outputs"].append({"name": "stdout", "output_type": "stream", "text": said})
        else:
            cells.append(_cell(len(cells), block["text"], []))
    encoded = base64.b64encode(picture(name).read_bytes()).decode()
    cells[-1]["outputs"].append({"data": {"image/png": encoded}, "metadata": {}, "output_type": "display_data"})
    rest = PICTURE.sub("", LINK.sub(r"\1", text[at:])).strip()
    if rest:
        cells.append(_cell(len(cells), rest))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def file(name: str) -> Path:
    """Where the notebook lies."""
    return ROOT / "examples" / "notebooks" / f"{name}.ipynb"


def main() -> None:
    """All pages, or those that are named."""
    for name in sys.argv[1:] or PAGES:
        page(name).write_text(run(name), encoding="utf-8")
        file(name).write_text(notebook(name), encoding="utf-8")


if __name__ == "__main__":
    main()
