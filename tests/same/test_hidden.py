"""Layers behind another one, activations, flattenings and heads in other words: pictures are read as behind the plain
form. Of 557 cells 155 were weaker when layers that read the input and the last one alone were looked for; what still is
stands in `known`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from hunt.scenarios import Reading, Scenario
from hunt.zoo import Net, pool
from same.readings import share

NETS = {"behind a convolution": (Net("convolution"), 1), "behind a norm": (Net(norm="layer"), 2)}
CELLS = [
    (network, field, word)
    for network, fields in (("behind a convolution", "first rows relu head"), ("behind a norm", "head"))
    for field in fields.split()
    for word in pool(field, held_out=False)
]


@cache
def read(network: str, *field: str, word: str = "") -> Reading:
    net, examples = NETS[network]
    return Scenario(net=replace(net, **dict.fromkeys(field, word)), examples=examples, seed=7).read()


@pytest.mark.parametrize(
    ("network", "field", "word"), [pytest.param(*cell, marks=share(20, *cell), id=" ".join(cell)) for cell in CELLS]
)
def test_pictures_are_read_behind_other_words(network: str, field: str, word: str) -> None:
    found, plain = read(network, field, word=word), read(network)
    if found.certified < 0:
        pytest.skip(f"these words do not fit a tensor inside ({found.why[:60]})")
    assert plain.certified == NETS[network][1]
    assert found.certified == plain.certified, found.why
