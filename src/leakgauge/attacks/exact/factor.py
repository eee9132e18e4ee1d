"""The length of an update that is not known: what a defence multiplied all of it by."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.exact.candidates import SLACK
from leakgauge.attacks.exact.residual import FACTOR, Examples, residual
from leakgauge.attacks.exact.sums import Sums
from leakgauge.attacks.exact.tail import Tail

AGREE = 3
"""Rows that must name the same factor."""

MOST = 3
"""Factors that are tried."""

ERRORS = 4.0
"""A row's factor is off by this many times its relative rounding: of the entry, of the example and of its share."""


def factors(tail: Tail, sums: Sums) -> tuple[list[float], int]:
    """What the whole gradient may have been multiplied by (clipping, an unknown learning rate), likeliest first.

    A row that one example alone drives is that example whatever the length of the update. The model tells the row's
    bias entry for it and every label; the observed one is that times the factor, for the right label. Other rows name
    other factors, by accident: the value that most rows name, within their rounding, is the factor. A factor is no
    proof: what is read with it has to prove itself.

    Returns:
        At most `MOST` factors, named by `AGREE` rows or more; and how many tests were made.
    """
    state = residual(tail, sums, Examples.none(sums.weight))
    rows = (~state.explained & (state.bias.abs() > FACTOR * state.error)).nonzero()[:, 0]
    x, doubt = state.weight[rows] / state.bias[rows, None], state.error[rows] / state.bias[rows].abs()
    if sums.low is not None and sums.high is not None:
        slack = (SLACK + FACTOR * doubt[:, None]) * (sums.high - sums.low)
        inside = ((x >= sums.low - slack) & (x <= sums.high + slack)).all(1)
        rows, x, doubt = rows[inside], x[inside], doubt[inside]
    if len(rows) < AGREE:
        return [], 0
    slopes = tail.errors_of_row(tail.answers(x), rows, int(sums.labels.max()) + 1)[:, sums.labels]
    named = state.bias[rows, None] / (sums.scale * slopes)
    row = torch.arange(len(rows), device=rows.device)[:, None].expand_as(named)
    width = (ERRORS * doubt)[:, None].expand_as(named)
    valid = torch.isfinite(named) & (named > 0) & (width < 1e-2)
    return _agreed(named[valid].log(), width[valid], row[valid]), int(named.numel())


def _agreed(value: Float[Tensor, " m"], width: Float[Tensor, " m"], row: Int[Tensor, " m"]) -> list[float]:
    """Values that lie within their widths of most others, of other rows; each with its neighbours taken once."""
    order = value.argsort()
    value, width, row = value[order], width[order], row[order]
    found: list[float] = []
    free = torch.ones(len(value), dtype=torch.bool, device=value.device)
    low = torch.searchsorted(value, value - width)
    high = torch.searchsorted(value, value + width, right=True)
    for index in (high - low).argsort(descending=True, stable=True).tolist():
        if len(found) == MOST or int(high[index] - low[index]) < AGREE:
            break
        near = slice(int(low[index]), int(high[index]))
        if not bool(free[index]) or len(row[near].unique()) < AGREE:
            continue
        free[near] = False
        weight = 1 / width[near].square().clamp_min(1e-30)
        found.append(float(((value[near] * weight).sum() / weight.sum()).exp()))
    return found
