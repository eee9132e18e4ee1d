"""Examples in named parts, as a training step of one's own takes them (`leakgauge.Task.of_step`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.data.arrays import read_archive
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import InputError
from leakgauge.registry import DATA
from leakgauge.step.layout import Layout
from leakgauge.task import Batch, DataSpec


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """A source of named tensors, one a part with an example a row; an audit gives it the parts of its task.

    Attributes:
        values: by the names of the parts.
        layout: the parts; `None` before there is a task.
        path: the archive that holds the values instead.
    """

    values: Mapping[str, Tensor] = field(default_factory=dict)
    layout: Layout | None = None
    name: str = "parts"
    path: str = ""
    normalise = False

    def of(self, layout: Layout | None) -> Parts:
        """With the parts of a task.

        Raises:
            InputError: there is none; a part is missing, of another shape, not finite, or outside its range.
        """
        values = self.values
        if layout is None:
            hint = "give lg.Task.of_step(…), or your_package.module:function that makes one"
            raise InputError("model", "is no training step, and the data are parts of one", hint)
        if self.path:
            hint = f"write it with numpy.savez({', '.join(f'{name}=…' for name in layout.parts)}), plain arrays only"
            arrays = read_archive(self.path, [(name,) for name in layout.parts], hint)
            values = {name: torch.as_tensor(array) for name, array in zip(layout.parts, arrays, strict=True)}
            values = {k: v.float() if v.is_floating_point() else v.long() for k, v in values.items()}
        made = replace(self, values=values, layout=layout)
        len(made)  # checks them
        return made

    @property
    def files(self) -> Sequence[Path]:
        """The archive; none where the values were given."""
        return [Path(self.path)] if self.path else []

    @cached_property
    def _batch(self) -> Batch:
        assert self.layout is not None
        return self.layout.batch(self.values)

    @property
    def format(self) -> DataSpec:
        """Of an example as searches have it: one part as it is, or all of them in a row from 0 to 1."""
        assert self.layout is not None
        return self.layout.spec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.format.shape

    @property
    def low(self) -> float:
        return self.format.edges[0][0]

    @property
    def high(self) -> float:
        return self.format.edges[1][0]

    @property
    def classes(self) -> int:
        return max(FEWEST_CLASSES, self.format.classes)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        """Classes, where they are what is taught; else zeros."""
        own = self._batch.labels
        plain = own.ndim == 1 and not own.is_floating_point()
        return own if plain else torch.zeros(len(own), dtype=torch.long)

    def __len__(self) -> int:
        return len(self._batch)

    def read(self, indices: Sequence[int]) -> Batch:
        return self._batch.take(torch.as_tensor(list(indices), dtype=torch.long))

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"example {index}" for index in indices]


@DATA.register("parts")
def parts(*, path: str) -> Parts:
    """Arrays of a NumPy archive, one for each part of the model's training step, by its names."""
    return Parts(path=path, name=f"parts:{Path(path).name}")
