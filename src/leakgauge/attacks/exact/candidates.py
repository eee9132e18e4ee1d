"""Rows of a gradient that one example alone may drive."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.exact.residual import FACTOR, Examples, Residual, shares_in
from leakgauge.attacks.exact.sums import Sums
from leakgauge.attacks.exact.tail import Tail

SLACK = 1e-2
"""How far outside the data's range a candidate may lie, in shares of the range's width."""

LOOSE = 1e-2
"""Relative gap up to which a candidate is worth an estimate of its error, and relative tolerance beyond which a test
tests too little."""

WEAK = 1e-3
"""Relative tolerance beyond which one row alone is no reason to accept a candidate, even for a while."""

LIKELY = 1e-3
"""Expected false matches among all tests up to which one row alone is taken before others; of rows that agree, one."""


def candidates(tail: Tail, sums: Sums, state: Residual, known: Float[Tensor, "k d"]) -> tuple[Examples, int]:
    """Examples that predict the row that they were read from, best first, and how many tests were made.

    A row that one example alone drives is s·δ_ki·(x_k, 1): its weights over its bias entry are the example. The
    candidate goes through the model, and for its true label the predicted s·δ_ki is the row's bias entry: d numbers
    make the candidate, one more tests it, for every label. Rows that give the same example agree.

    Args:
        known: examples that are not asked for again: those that were accepted, and those that were taken back.
    """
    rows = (~state.explained & ~state.open & (state.bias.abs() > FACTOR * state.error)).nonzero()[:, 0]
    x, doubt = state.weight[rows] / state.bias[rows, None], state.error[rows] / state.bias[rows].abs()
    if sums.low is not None and sums.high is not None:
        slack = (SLACK + FACTOR * doubt[:, None]) * (sums.high - sums.low)
        inside = ((x >= sums.low - slack) & (x <= sums.high + slack)).all(1)
        rows, x, doubt = rows[inside], x[inside], doubt[inside]
    none = Examples.none(sums.weight)
    if not len(rows):
        return none, 0
    slopes = tail.errors_of_row(tail.answers(x), rows, int(sums.labels.max()) + 1)
    gap = (sums.scale * slopes[:, sums.labels] - state.bias[rows, None]).abs()
    least, best = gap.min(1)
    near = least <= (LOOSE * state.bias[rows].abs()).maximum(FACTOR * state.error[rows])
    rows, x, doubt, least, labels = rows[near], x[near], doubt[near], least[near], sums.labels[best[near]]
    if not len(rows):
        return none, gap.numel()
    shares = shares_in(tail, sums, x, labels, doubt)
    at = torch.arange(len(rows), device=rows.device)
    tolerance = FACTOR * (state.error[rows] + shares.error[at, rows] + shares.open[at, rows])
    relative = tolerance / state.bias[rows].abs()
    kept = ((least <= tolerance) & (relative < LOOSE)).nonzero()[:, 0]
    kept = kept[relative[kept].argsort()]
    first, agreeing = _distinct(x[kept], labels[kept], doubt[kept])
    kept = kept[first]
    fresh = Examples(x[kept], labels[kept], doubt[kept], relative[kept], agreeing)
    fresh = _new(fresh, known)
    sure = fresh.relative * gap.numel() <= torch.where(fresh.agreeing > 1, 1.0, LIKELY)
    return fresh.take(sure if bool(sure.any()) else fresh.relative < WEAK), gap.numel()


def _distinct(
    x: Float[Tensor, "k d"], labels: Int[Tensor, " k"], doubt: Float[Tensor, " k"]
) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """The first of each group of equal candidates, and how many are in it."""
    size = x.norm(dim=1).clamp_min(1e-12)
    gap = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    near = (FACTOR * (doubt[:, None] + doubt) + 1e-9) * (size[:, None] + size)
    same = (gap <= near) & (labels[:, None] == labels)
    taken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    first, count = [], []
    for i in range(len(x)):
        if not taken[i]:
            group = same[i] & ~taken
            taken |= group
            first.append(i)
            count.append(int(group.sum()))
    pair = torch.tensor([first, count], dtype=torch.long, device=x.device)
    return pair[0], pair[1]


def _new(fresh: Examples, known: Float[Tensor, "k d"]) -> Examples:
    """Those that are not known: a unit on its kink leaves what looks like its example again."""
    if not len(known) or not len(fresh):
        return fresh
    gap = torch.cdist(fresh.x, known).amin(1) / fresh.x.norm(dim=1).clamp_min(1e-12)
    return fresh.take(gap > 1e-3)
