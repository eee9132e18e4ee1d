"""Numerical rank of a gradient, and how near it is to one outer product."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.tensors import BLOCK


@dataclass(frozen=True)
class Spectrum:
    """Numerical rank of a gradient, and the share of its square beyond one outer product."""

    rank: int
    full: int
    beyond_one: float


ALMOST_ONE = 1e-6
"""Share of a gradient's square beyond one outer product below which it is measured, not taken from a spectrum."""

WHOLE = 1 << 22
"""Entries up to which a gradient is decomposed itself; a larger one by the product of its short side with itself."""

SHOWN = 1 << 16
"""Entries by which values are taken for rounded."""


def spectrum(gradient: Tensor) -> Spectrum:
    """Singular values above the rounding of the gradient's own type count.

    Those of a large matrix A are the roots of A·Aᵀ's eigenvalues, summed in float64 a block at a time: they are off by
    some 1e-8 of the largest, far below the rounding of float32, and take no copy of A.
    """
    matrix = gradient.detach()
    largest, full = max(float(matrix.max()), -float(matrix.min())), min(matrix.shape)
    if largest == 0:
        return Spectrum(0, full, 0.0)
    rounding = torch.finfo(gradient.dtype).eps * max(matrix.shape)
    if matrix.numel() > WHOLE and gradient.dtype is not torch.float64:
        long = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        squares, beyond = _of_long(long, largest)
        return Spectrum(int((squares.sqrt() > rounding * squares[0].sqrt()).sum()), full, beyond)
    values = torch.linalg.svdvals(matrix.double() / largest)
    squares = values.square()
    return Spectrum(int((values > rounding * values[0]).sum()), full, float(squares[1:].sum() / squares.sum()))


def rounded_levels(gradient: Tensor) -> int:
    """How many magnitudes there are but zero, where the values are a few whole multiples of one step, as signs and
    quantisers leave them; 0 where they are not. Judged by the first `SHOWN` entries in 2¹⁴ths of the largest, for steps
    of at least 32 of those."""
    sizes = gradient.detach().flatten()[:SHOWN].double().abs()
    largest = float(sizes.max())
    if largest == 0:
        return 0
    levels = (sizes / largest * 2**14).round().unique()
    levels = levels[levels > 1]
    step = float(torch.cat([levels[:1], levels.diff()]).min())
    if step < 32 or len(levels) * 4 > len(sizes):
        return 0
    step = 2**14 / round(2**14 / step)
    off = (levels / step - (levels / step).round()).abs() * step
    return len(levels) if float(off.max()) <= 2 else 0


def _of_long(matrix: Float[Tensor, "long short"], largest: float) -> tuple[Float[Tensor, " short"], float]:
    """Squared singular values, the largest first, and their share beyond the first."""
    blocks = matrix.split(max(1, BLOCK // matrix.shape[1]))
    product = torch.zeros((matrix.shape[1],) * 2, dtype=torch.float64, device=matrix.device)
    for block in blocks:
        rows = block.double() / largest
        product.addmm_(rows.T, rows)
    squares = torch.linalg.eigvalsh(product).flip(0).clamp_min(0)
    share = float(squares[1:].sum() / squares.sum())
    if share < ALMOST_ONE:  # below, the sum drowns in the rounding of the first; a few products find that one's vector
        first, beyond = product[product.diagonal().argmax()], 0.0
        for _ in range(3):
            first = product @ (first / first.norm())
        first /= first.norm()
        for block in blocks:
            rows = block.double() / largest
            beyond += float((rows - (rows @ first)[:, None] * first).square().sum())
        share = beyond / float(product.trace())
    return squares, share
