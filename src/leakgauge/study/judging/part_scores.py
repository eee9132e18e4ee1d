"""Scores of what is no picture: words and tokens of texts and tables, parts of a training step's batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

UNLESS_EMPTY = Field(exclude_if=lambda value: value in (None, "", ()))
"""Left out of the JSON where there is nothing to say."""


@dataclass(frozen=True)
class PartScores:
    """One part of a training step's batch, what was read of it beside the truth.

    Attributes:
        kind: picture, volume, series, text, numbers, categories, or what is taught: labels, values, mask, …
        measure: `equal`, the share of its entries that are; or `error`, the mean absolute one in shares of the range.
        values: of each true example.
        guess: the same of the best guess that is the same for all, from other clients' examples.
    """

    name: str
    kind: str
    measure: str
    values: tuple[float | None, ...]
    guess: tuple[float, ...]

    @property
    def missed(self) -> tuple[float, float]:
        """What the read and the guess leave open, over the examples that were read."""
        both = [(v, g) for v, g in zip(self.values, self.guess, strict=True) if v is not None]
        left = [(1 - v, 1 - g) if self.measure == "equal" else (v, g) for v, g in both]
        return sum(v for v, _ in left), sum(g for _, g in left)


@dataclass(frozen=True)
class TokenScores:
    """The tokens of a client's texts as a multiset against the true one, padding left out.

    Attributes:
        precision, recall, f1: of the multisets.
        constant_f1: of the most frequent tokens of other texts, as often as they occur there.
        exact_set, exact_counts: whether the same tokens, and as often.
        counted: whether the attack read how often tokens occur; else each counts once.
        in_place: of texts that were read in order, the share of their tokens in their places.
    """

    precision: float
    recall: float
    f1: float
    constant_f1: float
    exact_set: bool
    exact_counts: bool
    counted: bool
    in_place: float | None


@dataclass(frozen=True)
class Words:
    """Examples and reads in words: cells of tables, or texts.

    Attributes:
        match: share of each example's words that was read.
        columns: names of the cells; `None`, as are `true` and `read`, where a report shows counts alone.
        read: of each example, `None` without a reconstruction.
        form: of texts, what a read is: in order, or their tokens.
    """

    match: list[float]
    columns: Annotated[tuple[str, ...] | None, UNLESS_EMPTY] = None
    true: Annotated[list[list[str]] | None, UNLESS_EMPTY] = None
    read: Annotated[list[list[str] | None] | None, UNLESS_EMPTY] = None
    form: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None
