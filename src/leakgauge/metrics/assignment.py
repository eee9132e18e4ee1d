"""Which reconstruction is held against which true example."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakgauge.data.lent import AT_ONCE, Lent, in_chunks
from leakgauge.errors import require
from leakgauge.metrics.metric import clamped


@dataclass(frozen=True)
class Assignment:
    """One-to-one: no reconstruction serves two truths.

    Attributes:
        slots: for each true example the index of its reconstruction; `None` where there are too few.
        spare: reconstructions left over. An attack that offers more than the truth has examples gets the best
            of many tries, so reports must show it.
    """

    slots: tuple[int | None, ...]
    spare: int = 0

    @property
    def matched(self) -> tuple[int, ...]:
        """True examples that have a reconstruction."""
        return tuple(i for i, slot in enumerate(self.slots) if slot is not None)

    def take(self, x_hat: Float[Tensor, "m ..."]) -> Float[Tensor, "k ..."]:
        """The reconstructions of `matched`, in that order."""
        return x_hat[[slot for slot in self.slots if slot is not None]]


def assign(
    x_hat: Float[Tensor, "m ..."],
    x: Float[Tensor, "n ..."],
    *,
    labels_hat: Int[Tensor, " k"] | None = None,
    labels: Tensor | None = None,
    data_range: float = 1.0,
    low: float = 0.0,
) -> Assignment:
    """The assignment with the least total squared error (Hungarian), first within equal labels, then among the rest.

    Without labels on either side all are one group. Soft labels count as their largest class. Both sides
    are clamped to the data's range first.

    Raises:
        InputError: examples differ in shape, or labels in number.
    """
    require(
        x_hat.shape[1:] == x.shape[1:],
        "x_hat",
        f"has examples of shape {tuple(x_hat.shape[1:])}, the truth {tuple(x.shape[1:])}",
        "reconstruct in the shape of the data",
    )
    cost = pairwise_mse(x_hat, x, data_range=data_range, low=low).T
    return _of_cost(cost, x_hat, x, labels_hat, labels)


def assign_each(
    x_hat: Float[Tensor, "m ..."],
    clients: Sequence[Float[Tensor, "n ..."]],
    *,
    data_range: float = 1.0,
    low: float = 0.0,
) -> list[Assignment]:
    """`assign` of the same reconstructions to each of several clients' examples, without labels."""
    together = torch.cat(list(clients))
    costs = pairwise_mse(x_hat, together, data_range=data_range, low=low).T.split([len(x) for x in clients])
    return [_of_cost(cost, x_hat, x, None, None) for cost, x in zip(costs, clients, strict=True)]


def _of_cost(
    cost: Float[Tensor, "n m"], x_hat: Tensor, x: Tensor, labels_hat: Tensor | None, labels: Tensor | None
) -> Assignment:
    slots: list[int | None] = [None] * len(x)
    free_truths, free_slots = list(range(len(x))), list(range(len(x_hat)))
    if labels_hat is not None and labels is not None:
        guessed, true = classes_of(labels_hat), classes_of(labels)
        counts = len(guessed) == len(x_hat) and len(true) == len(x)
        require(counts, "labels", "are not one an example", "give one label an example")
        for label in sorted(set(true)):
            _match(
                cost,
                [i for i in free_truths if true[i] == label],
                [j for j in free_slots if guessed[j] == label],
                slots,
            )
        free_truths = [i for i in free_truths if slots[i] is None]
        free_slots = [j for j in free_slots if j not in slots]
    _match(cost, free_truths, free_slots, slots)
    return Assignment(tuple(slots), max(0, len(x_hat) - len(x)))


def _match(cost: Float[Tensor, "n m"], truths: list[int], candidates: list[int], slots: list[int | None]) -> None:
    """Fills `slots` for a group."""
    if truths and candidates:
        rows, columns = linear_sum_assignment(cost[truths][:, candidates].numpy())
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            slots[truths[row]] = candidates[column]


def classes_of(labels: Tensor) -> list[int]:
    """Class indices of hard labels, the largest class of soft ones."""
    hard = labels if labels.ndim == 1 else labels.argmax(1)
    return [int(label) for label in hard.tolist()]


def pairwise_mse(
    a: Float[Tensor, "n ..."], b: Float[Tensor, "m ..."] | Lent, *, data_range: float = 1.0, low: float = 0.0
) -> Float[Tensor, "n m"]:
    """Mean squared error of every pair, in float64, after clamping. Memory is bounded in the number of `b`."""
    size = math.prod(b.shape if isinstance(b, Lent) else b.shape[1:])
    p, columns = clamped(a, data_range=data_range, low=low).reshape(len(a), size), []
    for chunk in in_chunks(b, max(1, AT_ONCE // (8 * max(1, size)))):
        q = clamped(chunk, data_range=data_range, low=low).reshape(len(chunk), size)
        # The matrix-product shortcut loses the small distances, which decide who is identified.
        columns.append(torch.cdist(p, q, compute_mode="donot_use_mm_for_euclid_dist").square() / max(1, size))
    return torch.cat(columns, 1) if columns else p.new_empty((len(a), 0))
