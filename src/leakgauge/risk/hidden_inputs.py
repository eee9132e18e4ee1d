"""Which layers of a model give their inputs away whole, and up to which batch, before any round is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leakgauge.attacks.features.inside import Centring, Inside
from leakgauge.errors import FOREIGN
from leakgauge.task import Task

SHARED = 0.5
"""Share of its offsets that a place has in common with its neighbour: below, overlaps do not determine the input."""


@dataclass(frozen=True)
class HiddenInput:
    """One layer and the input that it may give away.

    Attributes:
        weight: name of its parameter.
        filters: rows of its gradient.
        places: of one example that the loss reaches.
        largest: examples in a step up to which their inputs come out whole, if all filters are alive; 0 where the
            overlaps of its places do not determine them.
        room: rows that its gradient can hold.
        batched: whether batch statistics behind it take one row off each step.
    """

    weight: str
    filters: int
    places: int
    largest: int
    room: int
    batched: bool

    def whole(self, parts: Sequence[int]) -> bool:
        """Whether what it is given comes out of a round, or a sum of several clients', whose steps have so many
        examples."""
        rows = self.places * sum(parts) - self.batched * len(parts)
        return self.largest > 0 and rows <= self.room

    @property
    def words(self) -> str:
        """One clause with its numbers."""
        return f"{self.weight}: {self.filters} filters, {self.places} places, read whole up to batch {self.largest}"


def hidden_inputs(task: Task) -> tuple[HiddenInput, ...]:
    """All layers with several places, in the order in which they run; none where the model cannot be traced.

    An input of p places that reaches k filters comes out of a batch of B where k ≥ p·B (one less where a normalisation
    over the batch stands behind), see docs/explanation/convolutions.md.
    """
    if task.data.is_text or task.stochastic:
        return ()
    try:
        layers = Inside.of(task, 2).layers
    except FOREIGN:
        return ()
    found = []
    for layer in layers:
        if layer.unfolding.places > 1:
            places, filters = int(layer.used.sum()), len(task.parameters[layer.weight])
            batched, room = layer.centring is Centring.BATCH, min(filters, layer.unfolding.columns - 1)
            shared = layer.unfolding.overlap >= SHARED * layer.unfolding.index.shape[1]
            fits = min(filters + batched, layer.unfolding.columns - 1) // places if places and shared else 0
            found.append(HiddenInput(layer.weight, filters, places, fits, room, batched))
    return tuple(found)


def summary(found: Sequence[HiddenInput], batch: int) -> list[str]:
    """What is printed of a model: the layers that are read at a batch, else the one that comes nearest."""
    read = [one for one in found if one.largest >= batch]
    if not found:
        return []
    if not read:
        best = max(found, key=lambda one: one.largest)
        nearest = f"; nearest {best.words}" if best.largest else ""
        return [f"hidden inputs: no layer gives them away whole at batch {batch}{nearest}"]
    most = max(one.largest for one in read)
    head = f"hidden inputs: {len(read)} layers give them away whole at batch {batch}; none above batch {most}"
    return [head, *(f"  {one.words}" for one in read)]
