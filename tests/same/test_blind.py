"""Lists that were written blind, each committed before its first run: which first layers and tables are read worse than
the plain form. At that run 16, 9, 11, 2, 12, 2, 3, 2 and 2 of 40 cells of first layers were weaker, and none of 34 of
the fourteenth; what still is stands in `known`."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from hunt.zoo import Net, pool
from same import eighth, eleventh, fifteenth, fifth, fourteenth, ninth, seventh, sixth, tenth, thirteenth, twelfth
from same.readings import attacked, graded, pictures, share, unlike
from same.spellings import Spelled, Spelling, linear
from same.test_spellings import SIZES, TEXTS, WEIGHTS, Perceptron, perceptron, plain, texts, words

LISTS = fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth, thirteenth, fourteenth
LAYERS: dict[str, Spelling] = {name: how for words in LISTS for name, how in words.LAYERS.items()}
ALL: dict[str, Spelling] = {**LAYERS, **fifteenth.LAYERS}
"""With the list that nobody looks at who mends: of it only that it is the same function."""


def network(name: str) -> nn.Module:
    return Perceptron(Spelled(ALL[name], *WEIGHTS.first), linear(*WEIGHTS.head))


@pytest.mark.parametrize("name", ALL)
def test_they_are_the_same_function(name: str) -> None:
    x = pictures(4).inputs
    assert torch.allclose(network(name)(x), perceptron()(x), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "examples"), [pytest.param(k, n, marks=share(12, k, n)) for k in LAYERS for n in SIZES]
)
def test_they_are_read_as_the_plain_form(name: str, examples: int) -> None:
    assert not unlike(attacked(network(name), pictures(examples)), plain(examples))


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("name", fifth.TABLES)
def test_a_table_gives_its_tokens(name: str, examples: int) -> None:
    one, other = (attacked(words(n), texts(examples), spec=TEXTS) for n in (fifth.TABLES[name], None))
    assert other.tokens
    assert not unlike(one, other)


WORDS = [(field, word) for field in ("head", "relu", "rows") for word in pool(field, held_out=False)]


@cache
def plain_lint(family: str, examples: int) -> frozenset[tuple[str, str]]:
    return graded(Net(family).build(3), examples)


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("family", ["perceptron", "convolution"])
@pytest.mark.parametrize(("field", "word"), [pytest.param(*w, marks=share(20, *w), id=" ".join(w)) for w in WORDS])
def test_the_lint_says_the_same_in_other_words(family: str, field: str, word: str, examples: int) -> None:
    assert graded(Net(family, **{field: word}).build(3), examples) == plain_lint(family, examples)
