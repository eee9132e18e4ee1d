"""What accepted examples leave of a gradient, and how exactly they and it are known.

Tolerances are derived, not set. With u the unit round-off of the format in which the update came:

* A sum of n products that is rounded after each addition is off by about v·√n·Σ|terms| (independent roundings;
  the worst case has n for √n), v the round-off of the format that the client computes in. In row i the terms are the
  accepted examples' s·δ_ki and what is left. Writing it into the update adds at most u·|sum|, once.
* A predicted s·δ_ki is off by the error of the example it is computed from (the share `doubt` of x_k, carried through
  the model by evaluating it again at x_k·(1 + doubt)) and by the client's own arithmetic (p − y is rounded as a
  number of size one, which matters where the soft-max is saturated; logits by a few v of their size). Where the
  error of x_k may carry a unit over its kink, the whole share is in doubt, and the row says nothing.
* Subtracting adds these in quadrature. Dividing by the row's bias entry gives the relative error of a candidate:
  error_i / |Σ_k s·δ_ki|. The amplification by subtraction is thus carried along.
* A joint fit over m rows has the covariance (AᵀA)⁻¹ of weighted least squares, rows weighted by 1 / error_i.

A quantity agrees with its prediction where they differ by less than `FACTOR` times that error.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.exact.sums import Sums, Tail
from leakgauge.tensors import Wire
from leakgauge.view.entries import HARD, summed

FACTOR = 8.0  # how many standard errors a true value may be off

ROUNDED = 0.25
"""Rounding of a sum of d products, in shares of v·|x|·|w|: more for a plain loop, less for sums in blocks."""


@dataclass(frozen=True, eq=False)
class ExplainedExamples:
    """Examples that explain something of a gradient."""

    x: Float[Tensor, "k d"]  # what enters the layer, known to a share `doubt` of the largest input
    labels: Int[Tensor, " k"]
    doubt: Float[Tensor, " k"]
    relative: Float[Tensor, " k"]  # width of the test that accepted each, in shares of what was tested

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def none(like: Float[Tensor, "units d"]) -> "ExplainedExamples":
        index = torch.zeros(0, dtype=torch.long, device=like.device)
        return ExplainedExamples(like[:0], index, like.new_zeros(0), like.new_zeros(0))

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.x, self.labels, self.doubt, self.relative

    def take(self, which: Tensor) -> "ExplainedExamples":
        return ExplainedExamples(*(part[which] for part in self._parts))

    def joined(self, other: "ExplainedExamples") -> "ExplainedExamples":
        return ExplainedExamples(*map(torch.cat, zip(self._parts, other._parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Shares:
    """What examples contribute to each row's bias entry, s·δ_ki, with its standard error; and how large it may be where
    the error of the example may switch the unit on or off, zero elsewhere (`open`)."""

    value: Float[Tensor, "k units"]
    error: Float[Tensor, "k units"]
    open: Float[Tensor, "k units"]

    def of(self, units: int) -> "Shares":
        """In the first `units` rows."""
        return Shares(self.value[:, :units], self.error[:, :units], self.open[:, :units])


@dataclass(frozen=True, eq=False)
class Remainder:
    """What examples leave of the sums, row by row."""

    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    error: Float[Tensor, " units"]  # of a row's bias entry; of its weight entries in units of the largest input
    shares: Float[Tensor, "k units"]  # s·δ_ki of each example in each row
    explained: Bool[Tensor, " units"]  # rows of which nothing is left beyond their error
    open: Bool[Tensor, " units"]  # rows that say nothing: an example that was subtracted may or may not drive them


def shares_in(sums: Sums, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"], doubt: Float[Tensor, " k"]) -> Shares:
    """As `shares_of`, in the format of the sums."""
    scale = sums.scale * sums.shortened(x, labels)[:, None]
    return shares_of(sums.tail, x, labels, doubt, scale=scale, reach=sums.reach, wire=sums.wire)


def shares_of(
    tail: Tail,
    x: Float[Tensor, "k d"],
    labels: Int[Tensor, " k"],
    doubt: Float[Tensor, " k"],
    *,
    scale: float | Float[Tensor, "k 1"],
    reach: float,
    wire: Wire,
) -> Shares:
    """s·δ_ki of examples that are known up to a share `doubt` of themselves, where nothing larger than `reach`
    enters the layer. The format of the update tells what the client computes in."""
    unit = wire.arithmetic
    z = tail.answers(x)

    def errors(at: Tensor, of: Tensor = labels) -> Tensor:
        return scale * tail.errors(at, of)

    value = errors(z)
    # What the layer answers is off by the example's error and by the rounding of its own sum of d products.
    length = tail.weight.norm(dim=1)
    off = (doubt * reach)[:, None] * length
    rounded = unit * ROUNDED * x.norm(dim=1, keepdim=True) * length
    shake = torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=z.dtype).to(z)
    moved = (errors(z + shake * (off + rounded)) - value).abs()
    moved = moved.maximum((errors(tail.answers(x * (1 + doubt)[:, None])) - value).abs())
    # The loss's slope in the logits has entries of size one, which another label shows however small p − y is.
    other = errors(z, (labels + 1) % tail.task.data.classes).abs()
    step = FACTOR * (off + rounded)
    open_ = ((errors(z + step) != 0) != (value != 0)) | ((errors(z - step) != 0) != (value != 0))
    driven = (value != 0) & ~open_
    largest = value.abs().amax(1, keepdim=True).expand_as(value)
    error = torch.where(open_, 0.0, moved) + unit * (2 * other + 2 * value.abs())
    # Where the moved value happens to cross the first one it says too little: no less than the mean over the rows.
    mean = ((error.square() * driven).sum(1) / driven.sum(1).clamp_min(1)).sqrt()
    return Shares(value, torch.where(value != 0, error.maximum(mean[:, None]), 0.0), torch.where(open_, largest, 0.0))


def residual(sums: Sums, found: ExplainedExamples) -> Remainder:
    """Subtracts the examples' own gradients."""
    nothing = sums.bias.new_zeros((0, len(sums.bias)))
    shares = shares_in(sums, found.x, found.labels, found.doubt) if len(found) else Shares(*[nothing] * 3)
    weight = torch.addmm(sums.weight, shares.value.T, found.x, alpha=-1.0)
    bias = sums.bias - shares.value.sum(0)
    terms = (shares.value != 0).sum(0) + 1
    rounded = summed(sums.wire, terms, shares.value.abs().sum(0) + bias.abs())
    # A share's own error, and that of the example which it multiplies.
    carried = shares.error.square().sum(0) + (found.doubt[:, None] * shares.value).square().sum(0)
    switched = shares.open.square().sum(0)
    plain = rounded.square() + sums.written.square() + carried
    error = (plain + switched).sqrt()
    silent = (switched > plain) & (bias.abs() <= FACTOR * error)
    explained = (bias.abs() <= FACTOR * error) & (weight.abs().amax(1) <= FACTOR * sums.reach * error)
    return Remainder(weight, bias, error, shares.value, explained, silent)


def refit(sums: Sums, found: ExplainedExamples, *, passes: int = 4) -> tuple[ExplainedExamples, Remainder]:
    """All examples at once, by weighted least squares over the rows that they explain together. Shares depend on the
    examples, so the fit is repeated; what the last pass still moved counts as doubt."""
    state = residual(sums, found)
    for _ in range(passes):
        known = state.explained & ~state.open & (state.shares != 0).any(0)
        if int(known.sum()) < len(found):
            break
        # Rows weigh by all of their error; what the fit leaves is counted without the examples' own, which it settles.
        settled = residual(sums, replace(found, doubt=torch.zeros_like(found.doubt)))
        weight = 1 / state.error[known]
        q, r = torch.linalg.qr(state.shares[:, known].T * weight[:, None])
        diagonal = r.diagonal().abs()
        if float(diagonal.min()) <= 1e-12 * float(diagonal.max()):
            break
        inverse = torch.linalg.solve_triangular(r, q.T, upper=True) * weight
        step = inverse @ state.weight[known]
        spread = (inverse * settled.error[known]).norm(dim=1)
        moved = step.square().mean(1).sqrt() / sums.reach
        doubt = (spread.square() + moved.square()).sqrt() + sums.wire.unit / HARD
        found = replace(found, x=found.x + step, doubt=doubt)
        state = residual(sums, found)
        if bool((moved <= spread).all()):
            break
    return found, state
