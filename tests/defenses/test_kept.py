"""How many entries are kept: whole numbers, where the product of a share and a size is one but for its rounding."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.defenses import Prune, RandomK, TopK
from leakgauge.defenses.compression import kept_entries


@pytest.mark.parametrize(
    ("share", "total", "kept"), [(0.07, 100, 7), (0.55, 100, 55), (0.14, 50, 7), (0.1, 5, 1), (1.0, 3, 3), (0.5, 0, 0)]
)
def test_a_share_that_comes_out_even_keeps_no_more(share: float, total: int, kept: int) -> None:
    assert kept_entries(share, total) == kept
    tensors = {"t": torch.arange(1.0, total + 1)}
    generator = torch.Generator().manual_seed(0)
    for defense in (TopK(keep=share), RandomK(keep=share)):
        assert int((defense.on_update(tensors, generator)["t"] != 0).sum()) == kept
    if share < 1:
        assert Prune(rate=1 - share).kept(total) == kept


@given(st.integers(1, 1000), st.integers(0, 10**6))
def test_it_is_the_exact_ceiling_of_every_share_in_thousandths(thousandths: int, total: int) -> None:
    assert kept_entries(thousandths / 1000, total) == math.ceil(Fraction(thousandths, 1000) * total)
