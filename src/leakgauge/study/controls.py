"""The clients that show an attack's power: the plan's own, but with public examples and without a defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from leakgauge.data.source import MakesOthers, Part, Source, share
from leakgauge.draws import Draws
from leakgauge.task import Batch

CONTROLS = 5
"""Clients without a defence that an attack is tried on at least: with fewer, no result shows its power."""


@dataclass(frozen=True, eq=False)
class Client:
    """The examples of one client.

    Attributes:
        batch: what it holds.
        names: of its examples.
        indices: of the source's examples that no line-up and no public share may hold; its own, where they are whole
            examples of the source.
    """

    batch: Batch
    names: tuple[str, ...]
    indices: tuple[int, ...]


def client_of(source: Source, indices: Sequence[int]) -> Client:
    """A client that holds examples of the source."""
    return Client(source.read(indices), tuple(source.names(indices)), tuple(indices))


def control_client(source: Source, batches: Sequence[Sequence[int]], number: int) -> Client:
    """The `number`-th client of as many public examples as the plan's clients have, none of which they hold.

    A source too small to lend whole examples makes crops, with labels drawn at random. Where the public share is less
    than all controls need, examples serve in more than one of them.

    Args:
        batches: indices of the plan's clients.
    """
    held = frozenset(i for batch in batches for i in batch)
    size, generator = len(batches[0]), Draws(0).generator("control", number)
    if isinstance(source, MakesOthers):
        exclude = tuple(batches[number % len(batches)])
        inputs = source.others(frozenset(exclude), Part.PUBLIC, size, generator).whole()
        labels = torch.randint(source.classes, (size,), generator=generator)
        return Client(
            Batch(inputs, labels), tuple(f"public crop {number * size + i + 1}" for i in range(size)), exclude
        )
    lent = share(len(source), held, Part.PUBLIC) or share(len(source), frozenset(batches[0]), Part.PUBLIC)
    chosen = [lent[(number * size + i) % len(lent)] for i in range(size)]
    return client_of(source, chosen)
