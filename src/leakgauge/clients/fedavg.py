"""FedAvg: several local SGD steps; the client sends how far it moved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from leakgauge.clients.local_training import LocalTraining
from leakgauge.clients.optimisers import SGD
from leakgauge.clients.protocol import GradientRule
from leakgauge.draws import Draws
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind


@CLIENTS.register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Local SGD from the broadcast θ₀; the update is the delta θ_τ − θ₀, unrolled differentiably.

    Momentum and weight decay follow ``torch.optim.SGD``. Buffers are carried from step to step.

    Attributes:
        epochs: passes over the client's batch.
        batch_size: of a local step; the last one of an epoch may be smaller. `None`: all examples.
        lr: local learning rate.
        momentum, dampening, nesterov, weight_decay: as in ``torch.optim.SGD``.
        shuffle: draw a new order every epoch. Sequential otherwise, as in Inverting Gradients' experiments.

    Differs from the ROG release, which unrolls from θ_τ; see *known defects* in the docs.
    """

    epochs: int = 1
    batch_size: int | None = None
    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    shuffle: bool = False

    kind: ClassVar[UpdateKind] = UpdateKind.DELTA

    def __post_init__(self) -> None:
        _ = self.training

    @property
    def training(self) -> LocalTraining:
        """The same as local training of `SGD`."""
        sgd = SGD(
            lr=self.lr,
            momentum=self.momentum,
            dampening=self.dampening,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )
        return LocalTraining(optimiser=sgd, epochs=self.epochs, batch_size=self.batch_size, shuffle=self.shuffle)

    def steps(self, examples: int) -> int:
        return self.training.steps(examples)

    def order(self, examples: int, draws: Draws) -> list[torch.Tensor]:
        """Indices of the examples of each local step."""
        return self.training.order(examples, draws)

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        return self.training.local_training(task, batch, draws, gradient)
