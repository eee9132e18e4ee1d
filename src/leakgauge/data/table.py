"""CSV files: numbers and categories read back in their own units, and texts as the numbers of their tokens."""

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.data.arrays import InMemory
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import refusing, require
from leakgauge.registry import DATA

MOST_CATEGORIES = 100  # values of a column beyond which it is taken for a name, not for a category


@dataclass(frozen=True)
class Column:
    """How a column's cells become numbers in [0, 1] and back."""

    name: str
    values: tuple[str, ...] = ()  # of a category, one number each; empty for numbers
    low: float = 0.0  # low, high: of numbers, over the whole file
    high: float = 1.0
    digits: int = 0  # decimals that the file's numbers have at most

    @property
    def width(self) -> int:
        return max(1, len(self.values))

    def numbers(self, cell: str) -> list[float]:
        if self.values:
            return [float(cell == value) for value in self.values]
        return [(float(cell) - self.low) / (self.high - self.low)]

    def cell(self, numbers: Sequence[float]) -> str:
        """What these numbers say, rounded as the file is."""
        if self.values:
            return self.values[max(range(self.width), key=numbers.__getitem__)]
        return f"{self.low + numbers[0] * (self.high - self.low):.{self.digits}f}"

    @staticmethod
    def of(name: str, cells: Sequence[str], *, categorical: bool) -> "Column":
        """Numbers where all cells are some and it is not said to be a category. `InputError` for what is neither."""
        empty = next((i for i, cell in enumerate(cells, 2) if cell in ("", "NA", "NaN", "nan", "?")), None)
        hint = "fill it or leave the row out, as the client does"
        require(empty is None, "data.source", f"line {empty}, column {name} is empty", hint)
        try:
            numbers = [] if categorical else [float(cell) for cell in cells]
        except ValueError:
            numbers = []
        if not numbers:
            values = tuple(sorted(set(cells)))
            problem = f"column {name} has {len(values)} different values that are no numbers"
            require(len(values) <= MOST_CATEGORIES, "data.ids", problem, f"add it if it names rows: ids: [{name}]")
            return Column(name, values)
        require(all(map(math.isfinite, numbers)), "data.source", f"column {name} is not finite", hint)
        digits = max(len(cell.lower().partition("e")[0].partition(".")[2]) for cell in cells)
        return Column(name, (), min(numbers), max(numbers) if max(numbers) > min(numbers) else min(numbers) + 1, digits)


def read_rows(path: str, separator: str) -> list[list[str]]:
    """The rows of a CSV file, its header first. Raises `InputError`: unreadable, empty, two columns of one name, or
    rows of different lengths."""
    require(len(separator) == 1, "data.separator", f"is {separator!r}", "give one character")
    hint = "give a CSV file in UTF-8 with a header"
    with refusing("data.source", f"cannot read '{path}'", hint), open(path, encoding="utf-8-sig", newline="") as file:
        found = [row for row in csv.reader(file, delimiter=separator, strict=True) if row]
    require(len(found) > 1, "data.source", f"'{path}' holds no rows", "give a header and a line an example")
    twice = len(set(found[0])) < len(found[0])
    require(not twice, "data.source", "has two columns of one name", "give each column a name of its own")
    for i, row in enumerate(found[1:], 2):
        problem = f"line {i} has {len(row)} cells, the header {len(found[0])}"
        require(len(row) == len(found[0]), "data.source", problem, "check the separator and quotes")
    return found


def class_numbers(cells: Sequence[str]) -> tuple[Int[Tensor, " n"], int]:
    """Places of a column's values in their order, and how many classes that makes."""
    values = sorted(set(cells), key=lambda cell: (len(cell), cell) if cell.isdigit() else (0, cell))
    return torch.tensor([values.index(cell) for cell in cells]), max(FEWEST_CLASSES, len(values))


def require_columns(header: Sequence[str], **named: Sequence[str]) -> None:
    """Raises `InputError` where an option names a column that is not there."""
    for key, names in named.items():
        lacking = next((name for name in names if name not in header), None)
        problem = f"names {lacking!r}, and the columns are {', '.join(header[:12])}"
        require(lacking is None, f"data.{key}", problem, "name columns of the header")


@dataclass(frozen=True, eq=False, kw_only=True)
class Table(InMemory):
    """A source of rows of cells; models see one vector a row, its columns in order."""

    features: Sequence[Column]  #: of each row
    name: str = "table"

    usual = "row {1}"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.features)

    def in_words(self, inputs: Float[Tensor, "n features"]) -> list[list[str]]:
        """The cells that these numbers say, in the file's units: numbers rounded as it is, the likeliest category."""
        rows = inputs.detach().double().cpu().split([column.width for column in self.features], 1)
        columns = [[c.cell(cell) for cell in part.tolist()] for c, part in zip(self.features, rows, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)]


@DATA.register("csv")
def table(
    *, path: str, target: str = "", ids: tuple[str, ...] = (), categorical: tuple[str, ...] = (), separator: str = ","
) -> Table:
    """Rows of a CSV file with a header. Numbers are scaled to [0, 1] by their column's range, categories are one-hot.

    A column whose cells are all numbers is numeric, others are categories. Reports show a read beside the truth in the
    file's own units.

    Args:
        path: the file, in UTF-8.
        target: the column that is predicted; by default the last.
        ids: columns that name a row and are no features.
        categorical: columns that are categories although their cells are numbers.
        separator: between cells.
    """
    header, *rows = read_rows(path, separator)
    target = target or header[-1]
    require_columns(header, target=[target], ids=ids, categorical=categorical)
    cells = {name: [row[place].strip() for row in rows] for place, name in enumerate(header)}
    left = [name for name in header if name != target and name not in ids]
    require(bool(left), "data.ids", "leaves no feature", "name fewer columns")
    features = [Column.of(name, cells[name], categorical=name in categorical) for name in left]
    labels, classes = class_numbers(cells[target])
    numbers = zip(*([column.numbers(cell) for cell in cells[column.name]] for column in features), strict=True)
    return Table(
        inputs=torch.tensor([[value for cell in row for value in cell] for row in numbers]),
        labels=labels,
        count=classes,
        features=features,
        called=[" ".join(words) for words in zip(*(cells[name] for name in ids), strict=True)],
        files=[Path(path)],
        name=f"csv:{path}",
    )


PIECES = r"\w+|[^\w\s]"  # what a token is where the plan says nothing: a word, or a single mark


@dataclass(frozen=True, eq=False, kw_only=True)
class Tokens(InMemory):
    """A source of texts that a tokenizer of yours has cut up; models are called with whole numbers: `inputs` are those
    of the tokens of each text, all of one length."""

    words: Sequence[str]  #: the token of each number
    padding: int | None = None  #: the number that fills up short texts; `None` where there is none.
    name: str = "texts"
    usual, columns = "text {1}", ()

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
    """Texts of a CSV file in UTF-8 with a header. The model is called with token numbers, a row a text.

    Args:
        target: the column that is predicted; by default the last.
        ids: columns that name a text.
        vocabulary: a file with a token a line, in the order of their numbers, `padding` and `unknown` among them, as
            BERT's ``vocab.txt``. Without one the tokens of this file, the most frequent first.
        length: tokens that the model is given: longer texts are cut, shorter ones filled up.
        pattern: regular expression of a token.
        lower: whether texts are put in lower case first.
        padding, unknown: the tokens that fill up, and that stand for those that are not in the vocabulary.
    """
    header, *rows = read_rows(path, separator)
    target = target or header[-1]
    require_columns(header, column=[column], target=[target], ids=ids)
    require(length > 0, "data.length", f"is {length}", "give a positive number of tokens")
    with refusing("data.pattern", "is no regular expression", f"e.g. {PIECES}", re.error):
        piece = re.compile(pattern)
    cells = [row[header.index(column)] for row in rows]
    cut = [[m.group() for m in piece.finditer(cell.lower() if lower else cell)] for cell in cells]
    empty = next((i for i, pieces in enumerate(cut, 2) if not pieces), None)
    require(empty is None, "data.source", f"line {empty} has a text without a token", "leave it out")
    counts = Counter(piece for pieces in cut for piece in pieces if piece not in (padding, unknown))
    words = [padding, unknown, *sorted(counts, key=lambda word: (-counts[word], word))]
    words = _read_words(vocabulary, padding, unknown) if vocabulary else words
    numbers = {word: i for i, word in enumerate(words)}
    fill, other = numbers[padding], numbers[unknown]
    whole = [[numbers.get(w, other) for w in pieces[:length]] for pieces in cut]
    labels, classes = class_numbers([row[header.index(target)].strip() for row in rows])
    return Tokens(
        inputs=torch.tensor([row + [fill] * (length - len(row)) for row in whole]),
        labels=labels,
        words=words,
        padding=fill,
        count=classes,
        called=[" ".join(row[header.index(name)] for name in ids) for row in rows] if ids else (),
        files=[Path(path), *([Path(vocabulary)] if vocabulary else [])],
        name=f"text:{path}",
    )


def _read_words(path: str, padding: str, unknown: str) -> list[str]:
    hint = "give a file in UTF-8 with a token a line"
    with refusing("data.vocabulary", f"cannot read '{path}'", hint, OSError, UnicodeDecodeError):
        words = Path(path).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for key, word in (("padding", padding), ("unknown", unknown)):
        require(word in words, f"data.{key}", f"{word!r} is not in '{path}'", "name that token of the vocabulary")
    twice = len(words) - len(set(words))
    require(not twice, "data.vocabulary", f"'{path}' has {twice} tokens twice", "give each token one line")
    return words
