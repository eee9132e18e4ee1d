"""The fifth list of held-out spellings: which first layers are read worse than the plain form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from same.fifth import LAYERS, TABLES
from same.readings import attacked, pictures, share, unlike
from same.spellings import Spelled, linear
from same.test_spellings import SIZES, TEXTS, WEIGHTS, Perceptron, perceptron, plain, texts, words

CELLS = [pytest.param(k, n, marks=share(4, k, n)) for k in LAYERS for n in SIZES]


def network(name: str) -> nn.Module:
    return Perceptron(Spelled(LAYERS[name], *WEIGHTS.first), linear(*WEIGHTS.head))


@pytest.mark.parametrize("name", LAYERS)
def test_they_are_the_same_function(name: str) -> None:
    x = pictures(4).inputs
    assert torch.allclose(network(name)(x), perceptron()(x), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "examples"), [pytest.param(k, n, marks=share(4, k, n)) for k in LAYERS for n in SIZES]
)
def test_they_are_read_as_the_plain_form(name: str, examples: int) -> None:
    """At their first and only blind run eight of twenty words were weaker, in both sizes; none is now."""
    assert not unlike(attacked(network(name), pictures(examples)), plain(examples))


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_its_tokens(name: str, examples: int) -> None:
    one, other = (attacked(words(n), texts(examples), spec=TEXTS) for n in (TABLES[name], None))
    assert other.tokens
    assert not unlike(one, other)
