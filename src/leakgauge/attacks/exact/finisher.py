"""The last examples of a batch, which no row shows alone: sparse directions in what is left of a gradient."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.exact.residual import FACTOR, ExplainedExamples, Remainder, shares_in
from leakgauge.attacks.exact.sums import Sums
from leakgauge.attacks.matching.problem import Meter

SPARE = 6  # zeros that a direction must have beyond those which its rows were chosen for
APART = 1e-3  # least part of a direction that those before it do not hold
FITS = 1e-2  # largest part of an example's shares that the model does not predict from its input
POWERS = (0.0, 1.0, 2.0, 4.0)  # powers of a row's inverse length by which rows are drawn, in turn
SILENT = 0.2  # least share of units that an example does not drive, for which the search is long enough
SURE = 100  # sets of rows that are tried for each that is expected to be needed at that share
BATCH = 4_000_000  # numbers in one group of trials


@dataclass(frozen=True, eq=False)
class _Span:
    """What is left of a gradient, A = [W b] = L·(S·Vᵀ), in its numerical rank."""

    code: Float[Tensor, "rows r"]  # L, one row a unit
    sizes: Float[Tensor, " r"]  # S, falling
    rows: Float[Tensor, "r c"]  # S·Vᵀ
    error: Float[Tensor, " rows"]  # of a row of A in any direction
    live: Tensor  # units whose rows hold anything

    @staticmethod
    def of(sums: Sums, state: Remainder, examples: int) -> "_Span | None":
        """Of at most so many examples; `None` where nothing is left."""
        live = (~state.explained & ~state.open).nonzero()[:, 0]
        if not len(live):
            return None
        a = torch.cat([state.weight[live], state.bias[live, None]], 1)
        error = state.error[live] * sums.reach
        u, s, v = torch.linalg.svd(a, full_matrices=False)
        # Norm of a matrix of independent entries with these errors; and what the sizes beyond the examples show.
        noise = float(error.norm() + error.max() * a.shape[1] ** 0.5)
        if len(s) > examples and float(s[examples]) > noise:
            noise, error = float(s[examples]), error * (float(s[examples]) / noise)
        rank = int((s[:examples] > 3 * noise).sum())
        return None if not rank else _Span(u[:, :rank], s[:rank], s[:rank, None] * v[:rank], error, live)

    def zeros(self, q: Float[Tensor, "r n"]) -> Bool[Tensor, "rows n"]:
        """Which entries of each direction are zero within their error."""
        allowed: Tensor = FACTOR * self.error[:, None] * (q / self.sizes[:, None]).norm(dim=0)
        return (self.code @ q).abs() <= allowed


def finish(
    sums: Sums, state: Remainder, examples: int, generator: torch.Generator, meter: Meter, *, groups: int
) -> tuple[ExplainedExamples | None, str]:
    """All examples that are left, at once, or none of them, with how far the search came in words.

    What is left is A = Σ_k d_k·(x_k, 1)ᵀ, d_k example k's shares. The d_k span the columns of A and are zero in rows
    that their examples do not drive: of all directions in the span, they have the most zeros. A set of as many rows as
    the rank makes a basis with one non-zero entry in the set each; where the other rows belong to units that example k
    does not drive, one of these is d_k. With half of the units driven that takes about 2^(r−1)/r sets.

    Source: SPEAR (Dimitrov et al., NeurIPS 2024). Differs: a whole basis from each set (information-set decoding)
    instead of one direction from each null space; zeros by a derived error; the scale from the bias column.

    One direction may be missing: the input of its example is what is orthogonal to all others. It gives up after so
    many sets that examples which leave `SILENT` of the units undriven would long have been found."""
    span = _Span.of(sums, state, examples)
    if span is None:
        return None, ""
    rank, trials, best = len(span.sizes), 0, 0
    tries = islice(_search(span, generator), groups if len(span.live) >= rank + SPARE else 0)
    for directions, trials in tries:
        best = max(best, directions.shape[1])
        if directions.shape[1] >= rank - 1:
            whole = directions if directions.shape[1] == rank else _completed(sums, span, directions)
            found = _examples(sums, span, whole, len(state.bias)) if whole.shape[1] == rank else None
            if found is not None:
                return found, f"; {rank} left, {rank} told apart in {trials} sets of rows"
        if trials >= SURE * SILENT ** (1 - rank) or meter.over(0) is not None:
            break
    return None, f"; {rank} left, {best} told apart in {trials} sets of rows"


def _search(span: _Span, generator: torch.Generator) -> Iterator[tuple[Float[Tensor, "r m"], int]]:
    """Independent directions with far more zeros than they were made with, sparsest first (mixtures of two examples go
    as sparser directions are found), and how many sets it took."""
    (rows, rank), trials = span.code.shape, 0
    pool, counts = span.code.new_zeros((rank, 0)), span.code.new_zeros(0)
    sets = max(1, BATCH // (rows * rank))
    size = (span.code * span.sizes).norm(dim=1).clamp_min(1e-300).log().float().cpu()
    if rank == 1:
        yield pool, 0
        return
    while True:
        # Gumbel noise on the logarithm draws without replacement, short rows (few examples drive them) more often.
        noise = -(-torch.rand((sets, rows), generator=generator).clamp(1e-9, 1 - 1e-6).log()).log()
        power = torch.tensor(POWERS)[torch.arange(sets) % len(POWERS), None]
        index = (noise - power * size).topk(rank, dim=1).indices.to(span.code.device)
        inverse, info = torch.linalg.inv_ex(span.code[index])
        trials += sets
        q = inverse[info == 0].permute(1, 0, 2).reshape(rank, -1)
        q = q / q.norm(dim=0).clamp_min(1e-300)
        q = q[:, q.isfinite().all(0)]
        zeros = span.zeros(q).sum(0)
        good = zeros >= rank - 1 + max(SPARE, rows // 12)
        if bool(good.any()):
            pool, counts = torch.cat([pool, q[:, good]], 1), torch.cat([counts, zeros[good].to(counts)])
            kept = _independent(pool, counts)
            pool, counts = pool[:, kept], counts[kept]
        yield pool, trials


def _completed(sums: Sums, span: _Span, directions: Float[Tensor, "r m"]) -> Float[Tensor, "r n"]:
    """With the last direction, from the input that the others leave and the label whose shares lie in the span best."""
    other = torch.linalg.qr(directions, mode="complete")[0][:, -1] @ span.rows
    if float(other[-1].abs()) <= 1e-9 * float(other.abs().max()):
        return directions
    x = (other[:-1] / other[-1])[None].expand(len(sums.labels), -1)
    shares = shares_in(sums, x, sums.labels, sums.bias.new_zeros(len(x))).value[:, span.live]
    q = shares @ span.code
    gap = (shares - q @ span.code.T).norm(dim=1) / shares.norm(dim=1).clamp_min(1e-300)
    best = q[int(gap.argmin())]
    return torch.cat([directions, (best / best.norm().clamp_min(1e-300))[:, None]], 1)


def _independent(pool: Float[Tensor, "r m"], counts: Float[Tensor, " m"]) -> list[int]:
    """The sparsest directions of which none is in the span of those before it."""
    order = counts.argsort(descending=True, stable=True)
    parts, kept = pool[:, order], list[int]()
    while len(apart := (parts.norm(dim=0) > APART).nonzero()):  # one at a time; what is in the span stays there
        first = int(apart[0])
        kept.append(int(order[first]))
        way = parts[:, first] / parts[:, first].norm()
        order, parts = order[first + 1 :], parts[:, first + 1 :]
        for _ in range(2):
            parts = parts - way[:, None] * (way @ parts)
    return kept


def _examples(sums: Sums, span: _Span, directions: Float[Tensor, "r r"], units: int) -> ExplainedExamples | None:
    """Inputs by the dual basis, scaled so that the bias column is one; the label whose shares fit. `None` where not
    all of them do: a direction may still be a mixture."""
    rows = torch.linalg.solve(directions, span.rows)
    scale = rows[:, -1]
    if bool((scale.abs() <= 1e-9 * rows.abs().amax(1)).any()):
        return None
    x = rows[:, :-1] / scale[:, None]
    shares = sums.bias.new_zeros((len(x), units))
    shares[:, span.live] = (span.code @ directions).T * scale[:, None]
    doubt = span.error.max() * torch.linalg.inv(directions).norm(dim=1) / scale.abs() / sums.reach
    made = (shares_in(sums, x, label.expand(len(x)), doubt).value for label in sums.labels)
    best = torch.stack([(own - shares)[:, span.live].norm(dim=1) for own in made], 1).min(1)
    if bool((best.values > FITS * shares.norm(dim=1)).any()):
        return None
    # One match of whole rows, not one of many tests: proved only where nothing is left of the gradient.
    return ExplainedExamples(x, sums.labels[best.indices], doubt, torch.ones_like(doubt))
