"""Examples that a capture kept, with those of the other rounds beside it for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.data.npz import classes_of, read_archive
from leakgauge.data.source import FEWEST_CLASSES
from leakgauge.errors import require
from leakgauge.registry import DATA
from leakgauge.task import Batch
from leakgauge.update import EXAMPLES

HINT = "hand minibatches to leakgauge.flower.seen as you train"


@DATA.register("capture")
@dataclass(frozen=True, kw_only=True)
class Captured:
    """A captured round's examples as its network saw them, those of more `rounds`, then of others in the same folder.

    The range is that of all values together: attacks stay in it. Nothing is normalised again. Examples that occur in
    the rounds are left out of the others, which serve as line-up and public data; they are other clients' data.

    Attributes:
        path: the round's folder.
        rounds: folders of further rounds, whose examples follow in order, also where they are the same again.
        classes: number of labels; 0 counts them as the largest + 1 (at least two).
    """

    path: str
    rounds: tuple[str, ...] = ()
    classes: int = 0
    normalise = False

    def __post_init__(self) -> None:
        counted = max(FEWEST_CLASSES, 1 + int(self.labels.max()))
        object.__setattr__(self, "classes", self.classes or counted)

    @property
    def files(self) -> list[Path]:
        """All archives that are read."""
        own = [Path(path).absolute() for path in (self.path, *self.rounds)]
        near = sorted({f for folder in own for f in folder.parent.glob(f"*/{EXAMPLES}") if f.parent not in own})
        return [*(folder / EXAMPLES for folder in own), *near]

    @property
    def name(self) -> str:
        return f"capture:{self.path}"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._examples[0].shape[1:])

    @property
    def labels(self) -> Int[Tensor, " n"]:
        return self._examples[1]

    @property
    def low(self) -> float:
        return float(self._examples[0].min())

    @property
    def high(self) -> float:
        return float(self._examples[0].max())

    @cached_property
    def own(self) -> list[int]:
        """How many each round has: the first."""
        return [len(_read(file)[0]) for file in self.files[: 1 + len(self.rounds)]]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, indices: Sequence[int]) -> Batch:
        return Batch(self._examples[0][list(indices)], self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        ours = [
            f"example {i + 1} of {Path(path).name if self.rounds else 'the round'}"
            for path, count in zip((self.path, *self.rounds), self.own, strict=True)
            for i in range(count)
        ]
        return [ours[i] if i < len(ours) else f"another round's {i}" for i in indices]

    @cached_property
    def _examples(self) -> tuple[Float[Tensor, "n *shape"], Int[Tensor, " n"]]:
        first = [_read(file) for file in self.files[: 1 + len(self.rounds)]]
        x, held = first[0][0], {row.numpy().tobytes() for inputs, _ in first for row in inputs}
        alike = all(inputs.shape[1:] == x.shape[1:] for inputs, _ in first)
        require(alike, "data.source", "has rounds of examples of different shapes", "audit them apart")
        inputs, labels = [inputs for inputs, _ in first], [labels for _, labels in first]
        for file in self.files[len(first) :]:
            others, theirs = _read(file)
            new = [i for i, row in enumerate(others) if row.numpy().tobytes() not in held]
            if others.shape[1:] == x.shape[1:]:
                held |= {others[i].numpy().tobytes() for i in new}
                inputs.append(others[new])
                labels.append(theirs[new])
        return torch.cat(inputs), torch.cat(labels)


def _read(file: Path) -> tuple[Tensor, Tensor]:
    x, y = read_archive(file, (("x",), ("y",)), HINT)
    numbers = x.ndim >= 2 and x.size > 0 and x.dtype.kind in "fiu"
    inputs = torch.from_numpy(x.astype(np.float32)) if numbers else torch.tensor(torch.nan)
    require(
        bool(inputs.isfinite().all()),
        "data.source",
        f"{file} has examples of shape {x.shape} that are no finite numbers",
        HINT,
    )
    whole = y.dtype.kind in "iu" and y.ndim == 1
    require(whole, "data.source", f"{file} has labels of shape {y.shape}", "one class an example is supported")
    return inputs, torch.from_numpy(classes_of(x, y))
