"""FedAvg: several local SGD steps; the client sends how far it moved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from leakgauge.clients.protocol import GradientRule
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.registry import CLIENTS
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
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
        require(self.epochs > 0, "epochs", f"is {self.epochs}", "give a positive number")
        require(
            self.batch_size is None or self.batch_size > 0,
            "batch_size",
            f"is {self.batch_size}",
            "give a positive number",
        )
        require(self.lr > 0, "lr", f"is {self.lr}", "give a positive learning rate")
        require(0 <= self.momentum < 1, "momentum", f"is {self.momentum}", "give a number in [0, 1)")
        require(self.weight_decay >= 0, "weight_decay", f"is {self.weight_decay}", "give a number ≥ 0")
        require(
            not self.nesterov or (self.momentum > 0 and self.dampening == 0),
            "nesterov",
            "needs momentum and no dampening",
            "set momentum > 0 and dampening: 0",
        )

    def steps(self, examples: int) -> int:
        return self.epochs * math.ceil(examples / (self.batch_size or max(examples, 1)))

    def order(self, examples: int, draws: Draws) -> list[torch.Tensor]:
        """Indices of the examples of each local step."""
        size = self.batch_size or examples
        batches: list[torch.Tensor] = []
        for epoch in range(self.epochs):
            everyone = torch.arange(examples)
            if self.shuffle:
                everyone = torch.randperm(examples, generator=draws.generator("order", epoch))
            batches += list(everyone.split(size))
        return batches

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        parameters, buffers = task.parameters, task.buffers
        velocity: Tensors | None = None
        for step, index in enumerate(self.order(len(batch), draws)):
            model = draws.generator("model", step) if task.stochastic else None
            index = index.to(batch.labels.device)
            g, buffers = gradient(task, parameters, buffers, batch.take(index), model, draws.generator("example", step))
            if self.weight_decay:
                g = map_tensors(lambda gi, p: gi + self.weight_decay * p, g, parameters)
            if self.momentum:
                velocity = (
                    g
                    if velocity is None
                    else map_tensors(lambda v, gi: self.momentum * v + (1 - self.dampening) * gi, velocity, g)
                )
                g = map_tensors(lambda gi, v: gi + self.momentum * v, g, velocity) if self.nesterov else velocity
            parameters = map_tensors(lambda p, d: p - self.lr * d, parameters, g)
        return map_tensors(lambda p, p0: p - p0, parameters, task.parameters), buffers
