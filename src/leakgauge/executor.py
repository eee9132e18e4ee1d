"""Where jobs run: one contract, kept by the processes of this machine and by a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from leakgauge.workers import Loss, run_all

Job = TypeVar("Job")
Answer = TypeVar("Answer")
Ground = TypeVar("Ground")


class Executor(Protocol):
    """Where jobs run: `LocalPool` here, `leakgauge.cluster.RayCluster` on many machines.

    Attributes:
        elsewhere: whether on machines that may hold other data.
    """

    elsewhere: ClassVar[bool]

    def run_all(
        self,
        run: Callable[[Job], Answer],
        jobs: Iterable[Job],
        on_answer: Callable[[Answer], None],
        *,
        begin: Callable[[Ground], None],
        ground: Ground,
        kept: str,
        limit: float | None = None,
        on_lost: Callable[[Job, Loss, str], None] | None = None,
    ) -> None:
        """As `leakgauge.workers.run_all` has it."""


@dataclass(frozen=True)
class LocalPool:
    """Processes of this machine, so many at a time."""

    workers: int = 1
    elsewhere: ClassVar[bool] = False

    def run_all(self, run: Any, jobs: Any, on_answer: Any, **options: Any) -> None:
        """See `Executor`."""
        run_all(run, jobs, on_answer, workers=self.workers, **options)
