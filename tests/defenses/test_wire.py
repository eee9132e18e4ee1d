"""Bytes on the wire, by hand."""

from __future__ import annotations

import pytest
import torch

from leakgauge.defenses import (
    QSGD,
    Clip,
    Compose,
    Defense,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    Sign,
    Soteria,
    TopK,
    laplace,
    noise,
)
from leakgauge.defenses.compression import wire_bytes

FULL = {"w": torch.ones(1000), "b": torch.ones(10)}
"""1000 and 10 entries of 4 bytes, none zero."""


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        (NoDefense(), 4040),
        (noise(sigma=1.0), 4040),
        (Clip(norm=1.0), 4040),
        (Soteria(), 4040),
        # w: 50 · (32 + 10) = 2100 bits, or 50 · 32 + 1000 for a map; b: one value and 4 bits = 36 bits.
        (TopK(keep=0.05), 263 + 5),
        # w: 500 · 42 = 21 000 bits listed, 500 · 32 + 1000 = 17 000 mapped; b: 5 · 36 = 180 listed, 170 mapped.
        (TopK(keep=0.5), 2125 + 22),
        (RandomK(keep=0.05), 263 + 5),
        # All entries: a sparse code would be longer.
        (TopK(keep=1.0), 4040),
        # 7 values in 3 bits and a float: 3032 and 62 bits.
        (Quantise(levels=3), 379 + 8),
        (QSGD(levels=1), 254 + 7),
        # One bit each: 125 and 2 bytes; scaled: 4 bytes more a tensor.
        (Sign(), 125 + 2),
        (Sign(scaled=True), 129 + 6),
        # w: 50 · (3 + 10) + 32 = 682 bits; b: 3 + 4 + 32 = 39 bits.
        (Compose((TopK(keep=0.05), Quantise(levels=3))), 86 + 5),
        (Compose((noise(sigma=1.0), TopK(keep=0.05))), 263 + 5),
        # Noise fills the zeros again.
        (Compose((TopK(keep=0.05), Quantise(levels=3), noise(sigma=1.0))), 4040),
        (Compose((TopK(keep=0.05), laplace(sigma=1.0))), 4040),
    ],
    ids=lambda v: repr(v) if isinstance(v, Defense) else str(v),
)
def test_by_hand(defense: Defense, expected: int) -> None:
    assert wire_bytes(defense, FULL) == expected


def test_pruning_counts_what_is_left() -> None:
    tensors = {"w": torch.zeros(1000).index_fill(0, torch.arange(20), 2.0)}
    assert wire_bytes(Prune(rate=0.98), tensors) == 20 * 42 / 8


def test_a_zero_costs_a_third_symbol_of_a_sign() -> None:
    tensors = {"w": torch.zeros(1000).index_fill(0, torch.arange(20), 1.0)}
    assert wire_bytes(Sign(), tensors) == 199  # 1000 · log2 3 = 1584.96 bits


def test_the_element_size_counts() -> None:
    assert wire_bytes(NoDefense(), {"w": torch.ones(10, dtype=torch.float64)}) == 80
    assert wire_bytes(TopK(keep=0.1), {"w": torch.ones(1000, dtype=torch.float64)}) == 100 * 74 / 8


def test_edges() -> None:
    empty = {"w": torch.zeros(0)}
    for defense in (NoDefense(), TopK(keep=0.1), RandomK(keep=0.1), Prune(rate=0.5), Quantise(), Sign(scaled=True)):
        assert wire_bytes(defense, empty) == 0
    assert wire_bytes(TopK(keep=0.1), {"w": torch.ones(1)}) == 4
