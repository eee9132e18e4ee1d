"""Five searches that a newcomer types lead to the right page first."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT
from docs.test_pages import PAGES

SEARCHES = {
    "LoRA": "tutorials/lora",
    "sign off": "tutorials/flower",
    "my loss": "how-to/steps",
    "NVFlare": "how-to/captured",
    "what does inconclusive mean": "explanation/verdict",
}
BUILT = ROOT / "docs" / "_build" / "html" / "searchindex.js"
OTHERS = 30
"""No name of an object (11 + 15) and no word of a text (15) scores as much in Sphinx' search."""


def ranked(index: dict[str, Any], query: str) -> list[tuple[float, str]]:
    """Pages by the score that `searchtools.js` gives them for titles and main entries of the index, best first."""
    typed = query.lower().strip()
    found = []
    for title, places in index["alltitles"].items():
        if typed in title.lower() and len(typed) >= len(title) / 2:
            for file, _ in places:
                boost = index["titles"][file] == title
                found.append((round(15 * len(typed) / len(title)) + boost, index["docnames"][file]))
    for entry, places in index["indexentries"].items():
        if typed in entry and len(typed) >= len(entry) / 2:
            score = round(100 * len(typed) / len(entry))
            found += [(score, index["docnames"][file]) for file, _, main in places if main]
    return sorted(found, reverse=True)


@pytest.mark.parametrize(("query", "page"), SEARCHES.items())
def test_the_built_index_has_the_right_page_first(query: str, page: str) -> None:
    sources = max(Path(ROOT / one).stat().st_mtime for one in PAGES)
    if not BUILT.exists() or BUILT.stat().st_mtime < sources:
        pytest.skip("`make docs` has not built the pages as they are")
    text = BUILT.read_text(encoding="utf-8")
    scores = ranked(json.loads(text[text.index("{") : text.rindex("}") + 1]), query)
    assert scores
    assert scores[0][0] > OTHERS
    assert {name for score, name in scores if score == scores[0][0]} == {page}


@pytest.mark.parametrize(("query", "page"), SEARCHES.items())
def test_one_page_alone_calls_itself_what_is_searched_for(query: str, page: str) -> None:
    entry = re.compile(rf"^```{{index}} [^\n]*! {re.escape(query)}(?:,|$)", re.M | re.I)
    assert [one for one in PAGES if entry.search((ROOT / one).read_text(encoding="utf-8"))] == [f"docs/{page}.md"]
