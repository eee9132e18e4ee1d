"""The linear model of label counts, on statistics that were made by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakgauge.attacks.labels.posterior import Regression

CLASSES, MEANS, ENERGIES, EXAMPLES = 6, 18, 6, 8


def world(seed: int, noise: float) -> tuple[Regression, torch.Tensor, torch.Tensor]:
    """A regression over clients of a linear world, and a further client: its statistics and its counts."""
    g = torch.Generator().manual_seed(seed)
    slope = torch.randn(CLASSES, MEANS + ENERGIES, generator=g, dtype=torch.float64)
    labels = torch.randint(CLASSES, (800, EXAMPLES), generator=g)
    counts = torch.nn.functional.one_hot(labels, CLASSES).sum(1).double()
    noises = noise * torch.randn(800, MEANS + ENERGIES, generator=g, dtype=torch.float64)
    statistics = counts @ slope + noises
    return Regression.of(statistics[1:], labels[1:], ENERGIES, CLASSES), statistics[0], counts[0]


@given(st.integers(0, 10_000), st.floats(1e-6, 1e6))
def test_the_length_that_was_taken_off_is_found_whatever_it_was(seed: int, factor: float) -> None:
    fitted, statistics, counts = world(seed, 0.02)
    shortened = torch.cat([statistics[:MEANS] * factor, statistics[MEANS:] * factor**2])
    near = torch.full((CLASSES,), EXAMPLES // CLASSES).double()
    near[: EXAMPLES % CLASSES] += 1
    found, read = fitted.lengthened(shortened, near)
    assert torch.allclose(found, statistics, rtol=0.02)
    assert read.tolist() == counts.tolist()


def test_nothing_that_was_sent_stays_nothing() -> None:
    fitted, statistics, counts = world(0, 0.02)
    assert fitted.lengthened(statistics * 0, counts)[0].tolist() == [0.0] * len(statistics)


@pytest.mark.parametrize("noise", [0.02, 0.3])
def test_energies_that_contradict_the_rest_do_not_move_the_counts(noise: float) -> None:
    fitted, statistics, counts = world(1, noise)
    wrong = torch.cat([statistics[:MEANS], statistics[MEANS:] * 30])
    assert fitted.posterior(wrong, counts).mode(counts).tolist() == counts.tolist()
