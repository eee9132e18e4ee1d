"""The contract of minimisers."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import torch

from leakgauge.attacks.matching.problem import Minimum, Problem


@runtime_checkable
class Minimiser(Protocol):
    """Finds low points of a `Problem` within its meter.

    Attributes:
        batched: whether several restarts run side by side; else the engine hands them over one by one.
        dtype: the precision it needs; `None` takes that of `Compute`.
    """

    batched: ClassVar[bool]
    dtype: ClassVar[torch.dtype | None]

    def minimise(self, problem: Problem) -> Minimum: ...
