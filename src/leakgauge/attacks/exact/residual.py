"""What accepted examples leave of a gradient, and how exactly they and it are known.

Tolerances are derived, not set. With u the unit round-off of the format in which the update came:

* A sum of n products that is rounded after each addition is off by about v·√n·Σ|terms| (independent roundings;
  the worst case has n for √n), v the round-off of the format that the client computes in. In row i the terms are the
  accepted examples' s·δ_ki and what is left. Writing it into the update adds at most u·|sum|, once.
* A predicted s·δ_ki is off by the error of the example it is computed from (the share `doubt` of x_k, carried through
  the model by evaluating it again at x_k·(1 + doubt)) and by the client's own arithmetic (p − y is rounded as a
  number of size one, which matters where the soft-max is saturated; logits by a few u of their size).
* Subtracting adds these in quadrature. Dividing by the row's bias entry gives the relative error of a candidate:
  error_i / |Σ_k s·δ_ki|. The amplification by subtraction is thus carried along.
* A joint fit over m rows has the covariance (AᵀA)⁻¹ of weighted least squares, rows weighted by 1 / error_i.

A quantity agrees with its prediction where they differ by less than `FACTOR` times that error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.exact.sums import Sums
from leakgauge.attacks.exact.tail import Tail

FACTOR = 16.0
"""How many standard errors a true value may be off."""


HARD = 4.0
"""A rounding that cannot exceed its bound counts as a standard error of a fourth of it: `FACTOR` makes that four."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Examples that explain something of a gradient.

    Attributes:
        x, labels: of each; `x` is what enters the layer.
        doubt: error of each `x`, in shares of the largest input.
        error: of each one's s·δ in any row, absolute.
        relative: width of the test that accepted it, in shares of what was tested.
        agreeing: rows that gave this example when it was accepted.
    """

    x: Float[Tensor, "k d"]
    labels: Int[Tensor, " k"]
    doubt: Float[Tensor, " k"]
    error: Float[Tensor, " k"]
    relative: Float[Tensor, " k"]
    agreeing: Int[Tensor, " k"]

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def none(like: Float[Tensor, "units d"]) -> Examples:
        numbers, index = like.new_zeros(0), torch.zeros(0, dtype=torch.long, device=like.device)
        return Examples(like[:0], index, numbers, numbers, numbers, index)

    def take(self, which: Tensor) -> Examples:
        """Those at `which`."""
        parts = (self.x, self.labels, self.doubt, self.error, self.relative, self.agreeing)
        return Examples(*(part[which] for part in parts))

    def joined(self, other: Examples) -> Examples:
        """These and others."""
        mine = (self.x, self.labels, self.doubt, self.error, self.relative, self.agreeing)
        theirs = (other.x, other.labels, other.doubt, other.error, other.relative, other.agreeing)
        return Examples(*(torch.cat(pair) for pair in zip(mine, theirs, strict=True)))


@dataclass(frozen=True, eq=False)
class Residual:
    """What examples leave of the sums.

    Attributes:
        weight, bias: left of each row.
        error: of a row's bias entry, absolute; of its weight entries times the largest input.
        shares: s·δ_ki of each example in each row.
        explained: rows of which nothing is left beyond their error.
    """

    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    error: Float[Tensor, " units"]
    shares: Float[Tensor, "k units"]
    explained: Bool[Tensor, " units"]


def shares_of(tail: Tail, sums: Sums, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"]) -> Float[Tensor, "k units"]:
    """s·δ_ki of examples in every row."""
    return sums.scale * tail.errors(tail.answers(x), labels)


def residual(tail: Tail, sums: Sums, found: Examples) -> Residual:
    """Subtracts the examples' own gradients."""
    shares = shares_of(tail, sums, found.x, found.labels) if len(found) else sums.bias.new_zeros((0, len(sums.bias)))
    weight = torch.addmm(sums.weight, shares.T, found.x, alpha=-1.0)
    bias = sums.bias - shares.sum(0)
    active = (shares != 0).to(bias)
    terms = active.sum(0) + 1
    unit = torch.finfo(sums.wire.computed).eps / 2
    summed = 3 * unit * terms.sqrt() * (shares.abs().sum(0) + bias.abs())
    written = (sums.wire.unit * sums.bias.abs() + sums.floor) / HARD
    error = (summed.square() + written.square() + found.error.square() @ active).sqrt()
    explained = (bias.abs() <= FACTOR * error) & (weight.abs().amax(1) <= FACTOR * sums.reach * error)
    return Residual(weight, bias, error, shares, explained)


def uncertainty(
    tail: Tail, sums: Sums, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"], doubt: Float[Tensor, " k"]
) -> Float[Tensor, " k"]:
    """Absolute error of s·δ_k in any row, for examples that are known up to a share `doubt` of themselves."""
    shares = shares_of(tail, sums, x, labels)
    unit = torch.finfo(sums.wire.computed).eps / 2
    moved = shares_of(tail, sums, x * (1 + doubt + 4 * unit)[:, None], labels)
    # The loss's slope in the logits has entries of size one, which another label shows however small p − y is.
    classes = tail.task.data.classes
    other = shares_of(tail, sums, x, (labels + 1) % classes)
    return (moved - shares).abs().amax(1) + unit * (2 * other.abs().amax(1) + 4 * shares.abs().amax(1))


def refit(tail: Tail, sums: Sums, found: Examples, *, passes: int = 3) -> tuple[Examples, Residual]:
    """All examples at once, by weighted least squares over the rows that they explain together."""
    state = residual(tail, sums, found)
    for _ in range(passes):
        known = state.explained & (state.shares != 0).any(0)
        if int(known.sum()) < len(found):
            break
        weight = 1 / state.error[known, None]
        q, r = torch.linalg.qr(state.shares[:, known].T * weight)
        diagonal = r.diagonal().abs()
        if float(diagonal.min()) <= 1e-12 * float(diagonal.max()):
            break
        x = found.x + torch.linalg.solve_triangular(r, q.T @ (state.weight[known] * weight), upper=True)
        spread = torch.linalg.solve_triangular(r, torch.eye(len(found)).to(r), upper=True).norm(dim=1)
        doubt = spread + sums.wire.unit / HARD
        error = uncertainty(tail, sums, x, found.labels, doubt)
        found = Examples(x, found.labels, doubt, error, found.relative, found.agreeing)
        state = residual(tail, sums, found)
    return found, state
