"""The eighth list of held-out spellings: which first layers are read worse than the plain form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from same.eighth import LAYERS
from same.readings import attacked, pictures, share, unlike
from same.spellings import Spelled, linear
from same.test_spellings import SIZES, WEIGHTS, Perceptron, perceptron, plain


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
    assert not unlike(attacked(network(name), pictures(examples)), plain(examples))
