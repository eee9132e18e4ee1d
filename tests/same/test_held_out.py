"""Spellings that were held out, and which of them are read worse than the plain form."""

from __future__ import annotations

import pytest
import torch

from same.held_out import HELD_OUT
from same.readings import Perceptron, attacked, pictures, share, unlike
from same.spellings import Spelled, linear
from same.test_spellings import SIZES, WEIGHTS, perceptron, plain


def spelled(name: str) -> Perceptron:
    return Perceptron(Spelled(HELD_OUT[name], *WEIGHTS.first), linear(*WEIGHTS.head))


@pytest.mark.parametrize("name", HELD_OUT)
def test_they_are_the_same_function(name: str) -> None:
    x = pictures(4).inputs
    assert torch.allclose(spelled(name)(x), perceptron()(x), atol=1e-4)


WEAKER = {
    "a bag with weights": "the places of a table are fixed and its weights are the input, which is no looking up",
    "mean and times": "what is divided after it was repeated is not seen to be one number",
    "to and from pixels": "the bias is computed from the weight beside a bias of its own",
    "pairs of examples": "a loop over pairs of examples is traced with one number of them",
}
"""One in eleven, where one in forty was allowed. At their first run it was one in five: nine, of which five had causes
that are mended."""


@pytest.mark.parametrize(
    ("name", "examples"),
    [pytest.param(k, n, marks=share(12, k, n)) for k in HELD_OUT for n in SIZES if k not in WEAKER],
)
def test_they_are_read_as_the_plain_form(name: str, examples: int) -> None:
    assert not unlike(attacked(spelled(name), pictures(examples)), plain(examples))
