"""Which examples make MKOR's batches, by index."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.errors import InputError, require


def random_batches(labels: Int[Tensor, " n"], batch: int, batches: int, generator: torch.Generator) -> list[list[int]]:
    """Disjoint batches of a shuffled order, as a shuffling loader gives them in one epoch.

    Raises:
        InputError: too few examples.
    """
    _enough(batch, batches, len(labels))
    order = torch.randperm(len(labels), generator=generator)[: batch * batches]
    return [part.tolist() for part in order.split(batch)]


def few_class_batches(
    labels: Int[Tensor, " n"], classes: int, batch: int, batches: int, generator: torch.Generator
) -> list[list[int]]:
    """Batches from `classes` classes each: the classes are drawn first, then examples of them without replacement.

    MKOR's *n-class* batches. Each batch draws its own classes among those that occur; batches may overlap. A class
    that is drawn may still have no example in the batch.

    Raises:
        InputError: fewer classes than asked for, or classes with too few examples for a batch.
    """
    _enough(batch, 1, len(labels))
    require(batches > 0, "batches", f"is {batches}", "give a positive number")
    present = labels.unique()
    require(
        0 < classes <= len(present), "classes", f"is {classes} of {len(present)}", "give a number of classes that occur"
    )
    made = []
    for _ in range(batches):
        drawn = present[torch.randperm(len(present), generator=generator)[:classes]]
        members = torch.isin(labels, drawn).nonzero().flatten()
        if len(members) < batch:
            raise InputError(
                "batch", f"is {batch} and the classes drawn have {len(members)} examples", "lower it, or ask for more"
            )
        made.append(members[torch.randperm(len(members), generator=generator)[:batch]].tolist())
    return made


def _enough(batch: int, batches: int, available: int) -> None:
    for name, value in (("batch", batch), ("batches", batches)):
        require(value > 0, name, f"is {value}", "give a positive number")
    require(
        batch * batches <= available,
        "batch",
        f"{batches} disjoint batches of {batch} need more than the {available} examples there are",
        "lower it, or add examples",
    )
