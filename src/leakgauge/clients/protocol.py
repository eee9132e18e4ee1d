"""How a client turns a batch into an update, and the plain gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol as TypingProtocol
from typing import runtime_checkable

import torch
from torch import Tensor
from torch.func import grad, vmap

from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors, map_tensors
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


def mean_gradient(
    task: Task,
    parameters: Tensors,
    buffers: Tensors,
    batch: Batch,
    model: torch.Generator | None,
    defense: torch.Generator,
) -> tuple[Tensors, Tensors]:
    """Gradient of the mean loss. The plain `GradientRule`."""
    del defense

    def loss(p: Tensors) -> tuple[Tensor, Tensors]:
        return task(p, buffers, batch, model)

    gradient, fresh = grad(loss, has_aux=True)(parameters)
    return gradient, fresh


def example_gradients(
    task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: torch.Generator | None
) -> Tensors:
    """One gradient per example, stacked.

    Raises:
        InputError: a BatchNorm in train mode mixes examples, so that no example has a gradient of its own.
    """
    refuse_mixing(task)

    def loss(p: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return task(p, buffers, Batch(x[None], y[None]), model)[0]

    per_example = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    return per_example(parameters, batch.inputs, batch.labels)  # type: ignore[no-any-return]


def refuse_mixing(task: Task) -> None:
    """Raises `InputError` where a BatchNorm in train mode mixes examples, or dropout draws for the batch as one."""
    if task.stochastic:
        raise InputError(
            "defenses",
            "clipping examples is not simulated with dropout in train mode or a layer that samples (precode)",
            "use mode: eval and no precode",
        )
    mixes = [n for n, m in task.module.named_modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if task.mode is Mode.TRAIN and mixes:
        raise InputError(
            "defenses",
            f"clipping examples needs per-example gradients, and the BatchNorm '{mixes[0]}' in train mode mixes them",
            "use GroupNorm, or mode: eval",
        )


ExampleStage = Callable[[Tensors, torch.Generator], Tensors]


def example_rule(stage: ExampleStage) -> GradientRule:
    """The `GradientRule` of a defence that changes each example's gradient before they are averaged."""

    def rule(
        task: Task,
        parameters: Tensors,
        buffers: Tensors,
        batch: Batch,
        model: torch.Generator | None,
        defense: torch.Generator,
    ) -> tuple[Tensors, Tensors]:
        changed = stage(example_gradients(task, parameters, buffers, batch, model), defense)
        with_buffers = task(parameters, buffers, batch, model)[1]
        return map_tensors(lambda g: g.mean(0), changed), with_buffers

    return rule
