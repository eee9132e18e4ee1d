"""Fenced blocks of a Markdown page, and what the line above each asks for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[\w-]+)\n(?P<text>.*?)^```$", re.S | re.M)


@dataclass(frozen=True)
class Block:
    """`mark` is ``run``, ``file: PATH``, ``fragment`` or empty."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str) -> list[Block]:
    """All blocks of a language, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, m.start("text")), m["language"], m["mark"] or "", m["text"])
        for m in FENCE.finditer(text)
    ]
    return [b for b in found if b.language == language]
