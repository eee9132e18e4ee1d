"""Examples that are in memory already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.errors import require
from leakgauge.task import Batch


@dataclass(frozen=True, eq=False, kw_only=True)
class InMemory:
    """A source of a user's own tensors.

    Attributes:
        inputs: raw values in [low, high].
        labels: classes of all examples, of any whole type.
        count: of classes; by default one more than the largest label, and at least two.
        low, high: the raw data's range.
        normalise: whether pictures are normalised before the model sees them (see `leakgauge.data.spec`).
        name: for reports.
    """

    inputs: Float[Tensor, "n *shape"]
    labels: Int[Tensor, " n"]
    count: int | None = None
    low: float = 0.0
    high: float = 1.0
    normalise: bool = False
    name: str = "memory"

    def __post_init__(self) -> None:
        require(len(self.inputs) == len(self.labels) > 0, "labels", f"are {len(self.labels)}", "give one an example")
        whole = self.labels.ndim == 1 and not (self.labels.is_floating_point() or self.labels.is_complex())
        odd = f"are {self.labels.dtype} of shape {tuple(self.labels.shape)}"
        require(whole, "labels", odd, "give one whole number an example: its class, from 0")
        object.__setattr__(self, "labels", self.labels.long())
        finite = bool(torch.isfinite(self.inputs).all())
        require(finite, "inputs", "hold NaN or infinity", "leave such examples out")
        inside = bool((self.inputs >= self.low).all()) and bool((self.inputs <= self.high).all())
        require(inside, "inputs", f"leave [{self.low:g}, {self.high:g}]", "give low and high of the raw data")
        known = bool((self.labels >= 0).all()) and bool((self.labels < self.classes).all())
        require(known, "labels", f"are not all in [0, {self.classes})", "give count, and labels from 0")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inputs.shape[1:])

    @property
    def classes(self) -> int:
        return max(2, int(self.labels.max()) + 1) if self.count is None else self.count

    def __len__(self) -> int:
        return len(self.inputs)

    def read(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(list(indices), dtype=torch.long)
        return Batch(self.inputs[chosen].float(), self.labels[chosen])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"example {index}" for index in indices]
