"""A source by name, and the batches of clients in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data.source import Source
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.registry import DATA, typed


def open_source(text: str, **options: Any) -> Source:
    """The source that a plan names.

    One of ``samples``, ``folder:PATH``, ``npz:PATH``, ``parquet:PATH``, ``hf:NAME`` and
    ``your_package.module:function``; `options` become the constructor's keywords, e.g. ``size=32``.

    Raises:
        InputError: no such source or option (the hint is the nearest one), or the source's own complaint.
    """
    require(isinstance(text, str), "data.source", f"is {text!r}", "name a source, e.g. samples or folder:PATH")
    kind, colon, path = text.partition(":")
    entries = {entry.name: entry for entry in DATA}
    if kind in entries:
        entry = entries[kind]
        takes_path = "path" in entry.parameters
        if takes_path and not path:
            raise InputError("data.source", f"'{text}' names no place", f"write {kind}:PATH")
        if colon and not takes_path:
            raise InputError("data.source", f"'{kind}' takes no path", f"write {kind}")
        options |= {"path": path} if takes_path else {}
    elif colon and "." in kind:
        entry = DATA[text]
    else:
        raise InputError("data.source", f"unknown source '{kind}'", did_you_mean(kind, entries))
    for option, value in options.items():
        if option not in entry.parameters:
            raise InputError(f"data.{option}", f"is no option of '{kind}'", did_you_mean(option, entry.parameters))
        options[option] = typed(entry.build, option, value, f"data.{option}")
    return cast(Source, entry.build(**options))


def unique_batch(labels: Int[Tensor, " n"], classes: int, occurrence: int = 0) -> list[int]:
    """The `occurrence`-th example (from 0) of every class, in order of classes: example i has label i.

    MKOR's *unique* batches: the u-th one holds the u-th example of each class in the data's order.

    Raises:
        InputError: a class has too few examples.
    """
    require(classes > 0, "classes", f"is {classes}", "give a positive number of classes")
    require(occurrence >= 0, "occurrence", f"is {occurrence}", "count from 0")
    found = []
    for label in range(classes):
        members = (labels == label).nonzero().flatten().tolist()
        if occurrence >= len(members):
            raise InputError(
                "occurrence",
                f"is {occurrence} and class {label} has {len(members)} examples",
                "give a smaller one, or data with more examples",
            )
        found.append(members[occurrence])
    return found


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


def label_counts(labels: Int[Tensor, " n"], batch: Sequence[int], classes: int) -> Int[Tensor, " classes"]:
    """How many examples of each class a batch has."""
    return torch.bincount(labels[list(batch)], minlength=classes)


def _enough(batch: int, batches: int, available: int) -> None:
    for name, value in (("batch", batch), ("batches", batches)):
        require(value > 0, name, f"is {value}", "give a positive number")
    require(
        batch * batches <= available,
        "batch",
        f"{batches} disjoint batches of {batch} need more than the {available} examples there are",
        "lower it, or add examples",
    )
