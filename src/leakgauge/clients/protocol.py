"""How a client turns a batch into a raw update. Client and attacker call the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol as TypingProtocol
from typing import runtime_checkable

import torch

from leakgauge.draws import Draws
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind

GradientRule = Callable[
    [Task, Tensors, Tensors, Batch, torch.Generator | None, torch.Generator], tuple[Tensors, Tensors]
]
"""``(task, parameters, buffers, batch, model generator, defence generator) → (mean gradient, new buffers)``.

A defence that acts on per-example gradients replaces the plain rule at every local step."""


@runtime_checkable
class Protocol(TypingProtocol):
    """Local training, differentiable in the batch.

    Guarantees: a pure function of its arguments; the same draws give the same update; usable under
    `torch.func` transforms.
    """

    @property
    def kind(self) -> UpdateKind:
        """What the client sends."""
        ...

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        """Raw update and the client's buffers afterwards."""
        ...

    def steps(self, examples: int) -> int:
        """Gradients that a client with that many examples computes, the cost of one simulation."""
        ...
