"""Smallest eigenpairs, plain and of a polynomial of the operator, against all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from leakgauge.attacks.features.null_space import EDGE, smallest, straightened

SIZE = 300
SPECTRA = {
    "one, clear": [1e-13],
    "three alike": [1e-12, 1e-12, 1e-12],
    "one, the next near": [1e-10, 3e-4, 5e-4],
    "two, the next beyond the edge": [1e-13, 1e-9],
}


def operator(small: list[float], rest: float) -> tuple[Tensor, Tensor]:
    """A symmetric matrix with eigenvalues in [0, 1], and the eigenvectors of the first."""
    generator = torch.Generator().manual_seed(len(small))
    vectors = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64))[0]
    values = torch.cat([torch.tensor(small, dtype=torch.float64), torch.linspace(rest, 1, SIZE - len(small)).double()])
    return vectors * values @ vectors.T, vectors[:, : len(small)].T


@pytest.mark.parametrize("rest", [0.01, 0.5], ids=["many small ones", "few small ones"])
@pytest.mark.parametrize("name", SPECTRA)
def test_a_polynomial_of_the_operator_shows_what_the_operator_does(name: str, rest: float) -> None:
    matrix, vectors = operator(SPECTRA[name], rest)
    told = torch.linalg.eigvalsh(matrix)
    count = len(SPECTRA[name]) + 1
    for through in (lambda apply: apply, straightened):
        draw = torch.Generator().manual_seed(0)
        pairs = smallest(through(lambda block: block @ matrix), SIZE, count, draw, least=1e-11)
        assert pairs is not None
        values, found = pairs
        fits = [i for i, v in enumerate(SPECTRA[name]) if v < 1e-3 * told[count - 1]]
        assert torch.allclose(values[: len(fits)], told[: len(fits)], rtol=5e-3, atol=1e-14)
        span = found[: len(fits)]
        assert float((vectors[fits] - vectors[fits] @ span.T @ span).norm(dim=1).max()) < 1e-6
        # The gap is never stated larger than it is, as it bounds errors.
        assert float(values[-1]) <= float(told[count - 1]) * (1 + 2e-2)
        if told[count - 1] < EDGE / 10:
            assert float(values[-1]) > 0.9 * float(told[count - 1])


def test_the_polynomial_rises_as_the_operator_from_zero_and_never_above_it() -> None:
    points = torch.cat([torch.logspace(-16, 0, 400, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    made = straightened(lambda block: block * points)(torch.ones(1, 401, dtype=torch.float64))[0]
    assert bool((made <= points * (1 + 1e-9) + 1e-15).all())
    assert torch.allclose(made[points < EDGE / 100], points[points < EDGE / 100], rtol=2e-2, atol=1e-15)
    beyond = made[points >= EDGE]
    assert float(beyond.min()) > EDGE / 2
    within = made[points < EDGE]
    assert float(within.max()) <= float(beyond.max())
    assert bool((made[:400][points[:400] < EDGE].diff() > -1e-15).all())
