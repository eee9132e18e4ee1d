"""Equations and unknowns of one hidden layer: as Qian & Hansen count them (Propositions 2, 3), and corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from leakgauge.errors import require
from leakgauge.risk.jacobian import highest_rank, low_rank


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


@dataclass(frozen=True)
class Tally:
    """A count of the whole system."""

    equations: int
    unknowns: int


def paper_tally(net: OneHidden, batch: int) -> Tally:
    """Equations n₂ + q·n₂ + n₁ + n₁·c against unknowns B·n₂ + B·q + B·D, as Qian & Hansen count.

    Source: Proposition 2 (linear layer). It takes the output errors p − y and the hidden activations for unknowns of
    their own, although both are functions of the inputs.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    equations = net.classes + net.classes * net.hidden + net.rows + net.rows * net.columns
    return Tally(equations, batch * (net.classes + net.hidden + net.inputs))


def paper_rows(net: OneHidden, batch: int) -> float:
    """Hidden units or filters that Qian & Hansen ask for.

    Source: Proposition 2: n₁ ≥ [B(d + n₂) − n₂] / (d + n₂ + 1 − B), infinite for B > d + n₂; a little above B at
    the B that their own experiments use (4.002 for 4, 8.045 for 8). Proposition 3: h = (d/d')²·B·C = B·D/d'².
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    if net.positions > 1:
        return batch * net.inputs / net.positions
    left = net.inputs + net.classes + 1 - batch
    return (batch * (net.inputs + net.classes) - net.classes) / left if left > 0 else math.inf


def paper_applies(net: OneHidden, batch: int) -> bool:
    """Whether a network and a batch are within what Qian & Hansen's count assumes.

    Source: Proposition 2 for B < d + n₂ + 1; Proposition 3 for 1 < B < n₂ and h·d'² ≥ n₂(B − 1)/(n₂ − B), so that the
    hidden activations follow from the last layer's gradient. Their own experiments take Proposition 3 for B = 1 too.
    """
    require(batch > 0, "batch", f"is {batch}", "give a positive number of examples")
    if net.positions == 1:
        return batch <= net.inputs + net.classes
    return 1 < batch < net.classes and net.hidden * (net.classes - batch) >= net.classes * (batch - 1)


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
        free=unknown_labels(net, batch) if soft_labels else 0,
    )


def unknown_labels(net: OneHidden, batch: int) -> int:
    """Unknowns that soft labels add: they sum to one."""
    return batch * (net.classes - 1)


def needed_rows(net: OneHidden, batch: int, *, soft_labels: bool = False) -> int:
    """The smallest number of units or filters with which the update can fix the batch: the corrected count."""
    rows = 1
    unknowns = batch * net.inputs + (unknown_labels(net, batch) if soft_labels else 0)
    while rank_of(replace(net, rows=rows), batch, soft_labels=soft_labels) < unknowns:
        rows += 1
    return rows
