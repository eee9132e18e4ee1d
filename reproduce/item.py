"""A numbered table or figure of a paper: what was published, and how it is measured here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from reproduce.rows import Row
from reproduce.tables import Cell, cells, title

if TYPE_CHECKING:
    import torch

    from leakgauge.compute import Compute
    from leakgauge.task import Batch, Task

FURTHER = 1000
"""Between the seeds of two starts."""


class State(Enum):
    """How an item stands here."""

    REPRODUCED = "reproduced"
    REDUCED = "reduced"
    NOT_RUN = "not run"


def _nothing(setting: str, attack: str) -> list[Row]:
    del setting, attack
    return []


def _nowhere(rows: Sequence[Row]) -> None:
    del rows


@dataclass(frozen=True)
class Inputs:
    """What a measurement may use.

    Attributes:
        quick: asks for a run of at most ten minutes on two cores.
        start: which of several runs this is; every seed moves with it.
        device: a torch device name.
        only: the settings and attacks that a list of claims reads; `None` runs everything.
        done: rows of a setting and an attack that an interrupted run has kept.
        keep: takes all rows of an attack at once, so that none is kept without the others.
    """

    data: Path
    quick: bool
    say: Callable[[str], None]
    done: Callable[[str, str], list[Row]] = _nothing
    keep: Callable[[Sequence[Row]], None] = _nowhere
    start: int = 0
    device: str = "cpu"
    only: frozenset[tuple[str, str]] | None = None

    def seed(self, number: int) -> int:
        """A seed of this start."""
        return number + FURTHER * self.start

    def seeds(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Seeds of this start."""
        return tuple(map(self.seed, numbers))

    def wants(self, setting: str, attack: str) -> bool:
        """Whether these rows are asked for."""
        return self.only is None or (setting, attack) in self.only

    def placed(self, task: Task) -> Task:
        """On the device, in its own precision."""
        return task if self.device == "cpu" else task.to(next(iter(task.parameters.values())).to(self.device))

    def secret(self, batch: Batch) -> Batch:
        """A client's batch on the device."""
        return (
            batch
            if self.device == "cpu"
            else replace(batch, inputs=batch.inputs.to(self.device), labels=batch.labels.to(self.device))
        )

    def compute(self, dtype: torch.dtype | None = None) -> Compute:
        """On the device."""
        from leakgauge.compute import Compute  # it loads torch, which the screen of claims does not need

        return Compute(device=self.device) if dtype is None else Compute(device=self.device, dtype=dtype)

    def once(self, setting: str, attack: str, run: Callable[[], Iterable[Row]]) -> Iterator[Row]:
        """The rows of an attack, from an interrupted run where it has them; nothing where they are not asked for."""
        if not self.wants(setting, attack):
            return
        rows = self.done(setting, attack)
        if not rows:
            rows = list(run())
            self.keep(rows)
        yield from rows


Measure = Callable[[Inputs], Iterator[Row]]


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure.

    Attributes:
        note: what replaced what, or why it is not run.
        needs: what the full run takes, measured.
        measure: `None` where nothing is run.
        stands: published "setting | attack" → ours that stand for it, reduced as the note says, best first.
    """

    paper: str
    name: str
    state: State
    note: str
    needs: str = ""
    measure: Measure | None = None
    stands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.measure is None) != (self.state is State.NOT_RUN):
            raise ValueError(f"{self.paper}/{self.name} is {self.state.value} but its measure is {self.measure}")

    def keys(self, cell: Cell) -> list[tuple[str, str, str]]:
        """What may stand beside a published number: a row of its own name, or one that stands for it."""
        ours = (tuple(part.strip() for part in row.split("|")) for row in self.stands.get(cell.row, ()))
        return [cell.key, *((setting, attack, cell.metric) for setting, attack in ours)]

    @property
    def title(self) -> str:
        """From the published numbers."""
        return title(self.paper, self.name)

    @property
    def cells(self) -> list[Cell]:
        """All published numbers of the item, baselines included."""
        return cells(self.paper, self.name)
