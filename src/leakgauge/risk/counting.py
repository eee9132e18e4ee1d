"""The highest rank that an update's Jacobian can have, counted layer by layer."""

from __future__ import annotations


def low_rank(rows: int, columns: int, rank: int) -> int:
    """Dimension of the matrices of at most that rank: r·(rows + columns − r)."""
    r = min(rows, columns, rank)
    return r * (rows + columns - r)


def highest_rank(
    *, rows: int, columns: int, hidden: int, inputs: int, later: int, batch: int, free: int = 0, bias: bool = True
) -> int:
    """The largest rank that the Jacobian of an update can have, for a network that reads its input in one layer.

    Let z be what that layer gives for the batch. Everything but ∂L/∂W of it depends on the examples through z alone:
    the later layers' gradients (`later` equations), ∂L/∂b, and also ∂L/∂W·Wᵀ = Σ δ zᵀ, which is rows·min(rows,
    columns) numbers of ∂L/∂W. So at most R = min(B·q + free, later + bias + rows·min(rows, columns))
    directions are seen through z, and the rest of ∂L/∂W adds rows·(columns − min(rows, columns)).

    Derived here. For a linear layer it is n₁·(d + B − n₁) below n₁ = B (and n₁ ≤ d), so that (B − n₁)·(d − n₁)
    directions stay open: n₁ ≥ B is needed. That it is enough is numerical only.

    Args:
        later: equations that the other layers give, `low_rank` where a gradient is one.
        free: unknowns besides the examples, B·(n₂ − 1) for soft labels.
    """
    repeated = rows * min(rows, columns)
    seen = min(batch * hidden + free, later + rows * bias + repeated)
    return min(batch * inputs + free, seen + rows * columns - repeated)


def unknown_labels(classes: int, batch: int, *, soft_labels: bool) -> int:
    """Unknowns that soft labels add: they sum to one."""
    return batch * (classes - 1) if soft_labels else 0
