"""Fenced blocks of a Markdown page, and what the line above each asks for.

What a block prints stands below it in a block of its own, under ``output``, where words and numbers are the same, or
``output within 10 %``, where numbers may be so far off.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[\w-]+)\n(?P<text>.*?)^```$", re.S | re.M)


@dataclass(frozen=True)
class Block:
    """`mark` is ``run``, ``output``, ``file: PATH``, ``fragment`` or empty."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str = "") -> list[Block]:
    """All blocks of a language, or of all, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, m.start("text")), m["language"], m["mark"] or "", m["text"])
        for m in FENCE.finditer(text)
    ]
    return [b for b in found if language in (b.language, "")]


def run(pages: Iterable[str]) -> dict[str, Any]:
    """The names after all blocks that are to run, in order, each of which prints what stands below it."""
    names: dict[str, Any] = {"__name__": "page"}
    for page in pages:
        found = blocks(page)
        for block, below in zip(found, [*found[1:], None], strict=True):
            if block.mark == "run":
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(block.text, str(block), "exec"), names)
                shown = below if below is not None and below.mark.startswith("output") else None
                problem = difference(printed.getvalue(), shown)
                assert not problem, f"{block}: {problem}"
    return names


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")


def difference(printed: str, shown: Block | None) -> str:
    """What is printed otherwise than shown; empty where nothing."""
    told, printed = (shown.text if shown else "").split(), printed.split()
    percent = re.search(r"within (\d+) %", shown.mark) if shown else None
    near = int(percent[1]) / 100 if percent else 0.0
    words = [NUMBER.sub("#", " ".join(each)) for each in (printed, told)]
    numbers = [[float(n) for n in NUMBER.findall(" ".join(each))] for each in (printed, told)]
    same = words[0] == words[1] and all(math.isclose(a, b, rel_tol=near) for a, b in zip(*numbers, strict=True))
    return "" if same else f"prints\n{' '.join(printed)}\nshows\n{' '.join(told)}"
