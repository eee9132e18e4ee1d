"""FedSGD: one gradient of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakgauge.clients.protocol import GradientRule
from leakgauge.draws import Draws
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind


@CLIENTS.register("fedsgd")
@dataclass(frozen=True)
class FedSGD:
    """Sends the gradient of the mean loss over a batch (McMahan et al., 2017)."""

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        model = draws.generator("model") if task.stochastic else None
        return gradient(task, task.parameters, task.buffers, batch, model, draws.generator("example"))

    def steps(self, examples: int) -> int:
        return 1
