"""How often each token occurs in each text, where a model adds up the embeddings of a text."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.observation import Observation

ALIKE = 1e-4
"""Relative distance up to which two rows are the same, and share of a row that whole counts may leave."""
WHOLE = 0.02
"""Distance of a count from a whole number."""
SHARED = 8
"""The rarest token of one text is taken to occur at most so often."""


def counts_of_pooled(
    observation: Observation, table: str, moved: Bool[Tensor, " vocabulary"]
) -> Int[Tensor, "n vocabulary"] | None:
    """Counts of each text, in no order; `None` where rows are no whole combinations of as many as there are texts.

    Of a sum or mean of embeddings every token of text b moves its row by the same δ_b for each time it occurs:
    row_v = Σ_b c_bv·δ_b, also over several steps of plain SGD. The rows that several tokens share, and that are no
    whole combination of others, are the δ_b. A text all of whose tokens occur twice is read as once.
    """
    examples = observation.examples or 0
    rows = observation.values(table).cpu()[moved]
    size = rows.norm(dim=1)
    if not bool((size > 0).all()) or examples < 1:  # moved by weight decay alone
        return None
    found = _one(rows, size) if examples == 1 else _several(rows, size, examples)
    if found is None or int(found.sum(1).max()) > observation.task.data.shape[0]:
        return None
    counts = torch.zeros(examples, len(moved), dtype=torch.long)
    counts[:, moved] = found
    return counts


def _one(rows: Float[Tensor, "k d"], size: Float[Tensor, " k"]) -> Int[Tensor, "1 k"] | None:
    least = rows[size.argmin()]
    for times in range(1, SHARED + 1):
        found = _whole(rows, size, least[None] / times)
        if found is not None:
            return found
    return None


def _several(rows: Float[Tensor, "k d"], size: Float[Tensor, " k"], examples: int) -> Int[Tensor, "n k"] | None:
    alike = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") <= ALIKE * size[:, None]
    basis = rows[:0]
    members = alike.sum(1)
    for index in sorted(range(len(rows)), key=lambda i: (-int(members[i]), float(size[i]))):
        if int(members[index]) < 2 or len(basis) == examples:
            break
        row = rows[index][None]
        if len(basis) and _whole(row, size[index][None], basis) is not None:
            continue
        basis = torch.cat([basis, row])
    if len(basis) != examples or int(torch.linalg.matrix_rank(basis, rtol=ALIKE)) < examples:
        return None
    return _whole(rows, size, basis)


def _whole(
    rows: Float[Tensor, "k d"], size: Float[Tensor, " k"], basis: Float[Tensor, "n d"]
) -> Int[Tensor, "n k"] | None:
    """Whole numbers ≥ 0, not all 0, that make every row of the basis; `None` where there are none."""
    shares = torch.linalg.lstsq(basis.T, rows.T, driver="gelsd").solution
    counts = shares.round()
    fits = (shares - counts).abs().max() < WHOLE and bool((counts >= 0).all()) and bool((counts.sum(0) > 0).all())
    left = (rows - counts.T @ basis).norm(dim=1)
    return counts.long() if fits and bool((left <= 10 * ALIKE * size).all()) else None
