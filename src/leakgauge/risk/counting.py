"""Equations against unknowns, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from leakgauge.errors import require


@dataclass(frozen=True, kw_only=True)
class OneHidden:
    """One linear or convolutional layer, a smooth activation, one linear layer; biases in both.

    Attributes:
        inputs: numbers in one example, D: d, or C·d².
        rows: hidden units n₁, or filters h.
        columns: numbers that one unit sees, c: d, or C·k².
        positions: places that a filter visits, d'²; 1 for a linear layer.
        classes: n₂, at least two (a soft-max over one class has no gradient).
    """

    inputs: int
    rows: int
    columns: int
    positions: int
    classes: int

    def __post_init__(self) -> None:
        for name in ("inputs", "rows", "columns", "positions"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(self.classes > 1, "classes", f"is {self.classes}", "give at least two")

    @staticmethod
    def linear(*, inputs: int, units: int, classes: int) -> OneHidden:
        """d → n₁ → n₂."""
        return OneHidden(inputs=inputs, rows=units, columns=inputs, positions=1, classes=classes)

    @staticmethod
    def convolution(
        *, channels: int, size: int, filters: int, classes: int, kernel: int = 5, stride: int = 2, padding: int = 2
    ) -> OneHidden:
        """h filters over a square image, then n₂ outputs. d' = ⌊(d − k + 2p)/s⌋ + 1."""
        side = (size - kernel + 2 * padding) // stride + 1
        require(side > 0, "kernel", f"of {kernel} does not fit {size} pixels", "give a smaller one")
        return OneHidden(
            inputs=channels * size * size,
            rows=filters,
            columns=channels * kernel * kernel,
            positions=side * side,
            classes=classes,
        )

    @property
    def hidden(self) -> int:
        """Activations of one example, q: n₁, or h·d'²."""
        return self.rows * self.positions


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
    directions stay open: n₁ ≥ B is needed. Proposition 2 arrives there by a count that does not show it, as there
    may be more equations than unknowns below B. That it is enough is numerical only (`rank_of`).

    Args:
        later: equations that the other layers give, `low_rank` where a gradient is one.
        free: unknowns besides the examples, B·(n₂ − 1) for soft labels.
    """
    repeated = rows * min(rows, columns)
    seen = min(batch * hidden + free, later + rows * bias + repeated)
    return min(batch * inputs + free, seen + rows * columns - repeated)


def rank_of(net: OneHidden, batch: int, *, soft_labels: bool = False) -> int:
    """`highest_rank` of a network of one hidden layer: what its update's Jacobian has at almost every point.

    Against the numerical rank (random weights and examples, sigmoid and tanh): equal for linear layers of 1 to 5 units,
    batches 1, 2 and 4, labels known or soft; for eight convolutions of kernel 3 or 5 and every number of filters
    up to the full rank, equal but for two, where the rank is lower because some pixels are over-determined before
    others are fixed. The step to the full rank comes at `needed_rows` in all of them.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    return highest_rank(
        rows=net.rows,
        columns=net.columns,
        hidden=net.hidden,
        inputs=net.inputs,
        # Output errors sum to zero over the classes, so one row of the last layer's gradient repeats the others.
        later=low_rank(net.classes - 1, net.hidden + 1, batch),
        batch=batch,
        free=unknown_labels(net.classes, batch, soft_labels=soft_labels),
    )


def unknown_labels(classes: int, batch: int, *, soft_labels: bool) -> int:
    """Unknowns that soft labels add: they sum to one."""
    return batch * (classes - 1) if soft_labels else 0


def needed_rows(net: OneHidden, batch: int, *, soft_labels: bool = False) -> int:
    """The smallest number of units or filters with which the update can fix the batch: the corrected count."""
    rows = 1
    unknowns = batch * net.inputs + unknown_labels(net.classes, batch, soft_labels=soft_labels)
    while rank_of(replace(net, rows=rows), batch, soft_labels=soft_labels) < unknowns:
        rows += 1
    return rows
