"""Sign and scale of maps that are read up to a factor, by the gradient of a shift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.features.null_space import SpanOfRows


@dataclass(frozen=True, eq=False)
class MapFactors:
    """Factors of the maps."""

    factors: Float[Tensor, " k"]  # what each map is to be multiplied with
    residual: float  # share of the shift's gradient that is left: a wrong map leaves more than rounding does


def signals_of(
    rows: Float[Tensor, "k places columns"], gradient: Float[Tensor, "filters columns"]
) -> Float[Tensor, "k places filters"]:
    """The signals δ of gradient = Σ δ ⊗ row, by least squares."""
    return combined(rows.flatten(0, 1), gradient).T.reshape(*rows.shape[:2], -1)


def combined(rows: Float[Tensor, "k columns"], target: Float[Tensor, "m columns"]) -> Float[Tensor, "m k"]:
    """Weights of the rows that make the target, by least squares; least ones where the rows are not independent. By
    their Gram matrix, refined twice: LAPACK's own least squares differ in the last digit from call to call."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    inside = values > 1e-12 * values[-1]
    inverse = (vectors[:, inside] / values[inside]) @ vectors[:, inside].T
    found: Tensor = target @ rows.T @ inverse
    for _ in range(2):
        found = found + (target - found @ rows) @ rows.T @ inverse
    return found


def by_shift(sums: Float[Tensor, "k channels"], shift: Float[Tensor, " channels"]) -> MapFactors | None:
    """Factors f of maps whose signals sum to `sums`: signals go with 1/f, so shift = Σ sums / f. `None` where there are
    no more channels than maps, so that anything fits."""
    if sums.shape[1] <= len(sums) or not bool(shift.abs().max() > 0):
        return None
    inverse = combined(sums, shift[None])[0]
    left = float((inverse @ sums - shift).norm() / shift.norm())
    if not bool((inverse != 0).all()):
        return None
    return MapFactors(1 / inverse, left)


def by_mean_row(spaces: Sequence[SpanOfRows], maps: Float[Tensor, "k c pixels"]) -> MapFactors:
    """Factors relative to each other, where a layer's row space holds but differences of rows of one step.

    All rows then leave the row space by the same vector, the part of their mean that lies outside: maps that are a
    factor too large leave it by as much more. Their sign is that of the sum.
    """
    outside = []
    for space in spaces:
        rows = space.unfolding.rows(maps)
        outside.append((rows - (rows @ space.basis.T) @ space.basis).mean(1))
    u, s, _ = torch.linalg.svd(torch.cat(outside, 1), full_matrices=False)
    first = u[:, 0] * u[:, 0].sum().sign()
    left = float(s[1] / s[0]) if len(s) > 1 else 0.0
    return MapFactors(1 / first.where(first.abs() > 1e-12, torch.full_like(first, 1e-12)), left)
