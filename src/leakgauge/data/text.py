"""Texts as the numbers of their tokens, read back in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.data.arrays import InMemory
from leakgauge.data.table import class_numbers, read_rows
from leakgauge.errors import InputError, require
from leakgauge.registry import DATA

PIECES = r"\w+|[^\w\s]"
"""What a token is where the plan says nothing: a word, or a single mark."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens(InMemory):
    """A source of texts that a tokenizer of yours has cut up; models are called with whole numbers.

    Attributes:
        inputs: numbers of the tokens of each text, all of one length.
        words: the token of each number.
        padding: the number that fills up short texts; `None` where there is none.
        labels, count, called, files, name: as of `InMemory`; the range is that of the tokens' numbers.
    """

    words: Sequence[str]
    padding: int | None = None
    name: str = "texts"
    columns = ()

    def __post_init__(self) -> None:
        ids, vocabulary = self.inputs, len(self.words)
        whole = ids.ndim == 2 and ids.numel() > 0 and not ids.is_floating_point()
        hint = "give whole numbers, a row a text, filled up to one length"
        require(whole, "inputs", f"are {ids.dtype} of shape {tuple(ids.shape)}", hint)
        inside = int(ids.min()) >= 0 and int(ids.max()) < vocabulary
        require(inside, "inputs", f"are not all in [0, {vocabulary})", "give the words of all tokens, in order")
        object.__setattr__(self, "high", float(vocabulary - 1))
        super().__post_init__()

    @property
    def vocabulary(self) -> int:
        return len(self.words)

    def names(self, indices: Sequence[int]) -> list[str]:
        return [self.called[i] if self.called else f"text {i + 1}" for i in indices]

    def in_words(self, inputs: Float[Tensor, "n length"]) -> list[list[str]]:
        """The tokens of each text in order, without padding."""
        return [[self.words[i] for i in row if i != self.padding] for row in inputs.round().long().tolist()]


@DATA.register("text")
def text(
    *,
    path: str,
    column: str = "text",
    target: str = "",
    ids: tuple[str, ...] = (),
    separator: str = ",",
    vocabulary: str = "",
    length: int = 32,
    pattern: str = PIECES,
    lower: bool = True,
    padding: str = "<pad>",
    unknown: str = "<unk>",
) -> Tokens:
    """Texts of a CSV file with a header. The model is called with token numbers, a row a text.

    Args:
        path: the file, in UTF-8.
        column: of the texts.
        target: the column that is predicted; by default the last.
        ids: columns that name a text.
        separator: between cells.
        vocabulary: a file with a token a line, in the order of their numbers, `padding` and `unknown` among them, as
            BERT's ``vocab.txt``. Without one the tokens of this file, the most frequent first.
        length: tokens that the model is given: longer texts are cut, shorter ones filled up.
        pattern: regular expression of a token.
        lower: whether texts are put in lower case first.
        padding, unknown: the tokens that fill up, and that stand for those that are not in the vocabulary.
    """
    rows = read_rows(path, separator)
    header = rows[0]
    target = target or header[-1]
    for key, name in (("column", column), ("target", target), *(("ids", name) for name in ids)):
        problem = f"names {name!r}, and the columns are {', '.join(header[:12])}"
        require(name in header, f"data.{key}", problem, "name a column of the header")
    require(length > 0, "data.length", f"is {length}", "give a positive number of tokens")
    try:
        piece = re.compile(pattern)
    except re.error as error:
        raise InputError("data.pattern", f"is no regular expression ({error})", f"e.g. {PIECES}") from error
    cells = [row[header.index(column)] for row in rows[1:]]
    cut = [[m.group() for m in piece.finditer(cell.lower() if lower else cell)] for cell in cells]
    empty = next((i for i, pieces in enumerate(cut, 2) if not pieces), None)
    require(empty is None, "data.source", f"line {empty} has a text without a token", "leave it out")
    words = _read_words(vocabulary, padding, unknown) if vocabulary else _words_of(cut, padding, unknown)
    numbers = {word: i for i, word in enumerate(words)}
    fill, other = numbers[padding], numbers[unknown]
    whole = [[numbers.get(w, other) for w in pieces[:length]] for pieces in cut]
    labels, classes = class_numbers([row[header.index(target)].strip() for row in rows[1:]])
    return Tokens(
        inputs=torch.tensor([row + [fill] * (length - len(row)) for row in whole]),
        labels=labels,
        words=words,
        padding=fill,
        count=classes,
        called=[" ".join(row[header.index(name)] for name in ids) for row in rows[1:]] if ids else (),
        files=[Path(path), *([Path(vocabulary)] if vocabulary else [])],
        name=f"text:{path}",
    )


def _words_of(cut: Sequence[Sequence[str]], padding: str, unknown: str) -> list[str]:
    counts = Counter(piece for pieces in cut for piece in pieces if piece not in (padding, unknown))
    return [padding, unknown, *sorted(counts, key=lambda word: (-counts[word], word))]


def _read_words(path: str, padding: str, unknown: str) -> list[str]:
    try:
        words = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        hint = "give a file in UTF-8 with a token a line"
        raise InputError("data.vocabulary", f"cannot read '{path}' ({error})", hint) from error
    for key, word in (("padding", padding), ("unknown", unknown)):
        require(word in words, f"data.{key}", f"{word!r} is not in '{path}'", "name that token of the vocabulary")
    twice = len(words) - len(set(words))
    require(not twice, "data.vocabulary", f"'{path}' has {twice} tokens twice", "give each token one line")
    return words
