"""How a client turns a batch into an update, and the plain gradient."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor
from torch.func import grad, vmap

from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, require
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors, dense, map_tensors
from leakgauge.update import UpdateKind

if TYPE_CHECKING:
    from leakgauge.clients.local_training import LocalTraining

GradientRule = Callable[[Task, Tensors, Tensors, Batch, Generator | None, Generator], tuple[Tensors, Tensors]]
"""``(task, parameters, buffers, batch, model generator, defence generator) → (mean gradient, new buffers)``.

A defence that acts on per-example gradients replaces the plain rule at every local step."""


@dataclass(frozen=True)
class GradientSum:
    """An update as Σ_t weights[t]·g_t + decay·θ₀, g_t the mean gradient over the examples of step t, at its parameters.

    Exact for any number of steps of one client. With one step, g is the mean over all examples at the broadcast θ₀.
    """

    weights: tuple[float, ...]  # of each step's gradient; below zero for a delta
    sizes: tuple[int, ...]  # examples of each step
    decay: float = 0.0  # what weight decay adds, in shares of the broadcast parameters
    bound: float | None = None  # greatest norm that a clip of the step leaves of the sum, decay apart; `None` without

    @property
    def shortened(self) -> bool:
        """Whether the gradient may have been multiplied by an unknown factor of at most one besides (clipped)."""
        return self.bound is not None

    @property
    def factor(self) -> float | None:
        """The multiple of the one mean gradient at θ₀ that the update is, decay apart; `None` where there are more, or
        it is not known."""
        return None if len(self.weights) != 1 or self.shortened else self.weights[0]


class Protocol(ABC):
    """Local training, differentiable in the batch. A client of one's own inherits from it.

    Guarantees: a pure function of its arguments; the same draws give the same update; usable under
    `torch.func` transforms. What attacks and accounts ask beyond the first three has an answer that is safe for any
    loop; a better one makes more attacks applicable."""

    shuffle: bool = False  # whether the order of the examples is drawn

    @property
    @abstractmethod
    def kind(self) -> UpdateKind:
        """What the client sends."""

    @abstractmethod
    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        """Raw update and the client's buffers afterwards."""

    @abstractmethod
    def steps(self, examples: int) -> int:
        """Gradients that a client with that many examples computes, the cost of one simulation."""

    def linear(self, examples: int) -> GradientSum | None:
        """The update as a sum of gradients; `None` where it is no such sum, or nobody says which."""
        return None

    def parts(self, examples: int) -> tuple[int, ...]:
        """Examples of each gradient that is computed, in turn."""
        return (examples,) * self.steps(examples)

    def clients(self, examples: int) -> "tuple[tuple[Protocol, int], ...]":
        """The clients whose mean is sent, with the examples of each."""
        return ((self, examples),)

    @property
    def aggregates(self) -> bool:
        """Whether the mean of several clients is sent."""
        return False

    @property
    def alone(self) -> "Protocol":
        """The client itself in the place of a cohort of it alone."""
        return self

    @property
    def loop(self) -> "LocalTraining | None":
        """The steps of each client; `None` for one gradient, and for loops that are written otherwise."""
        return None

    def with_loop(self, change: "Callable[[LocalTraining], LocalTraining]") -> "Protocol":
        """The same with another loop, where it has one."""
        return self if self.loop is None else change(self.loop)

    @property
    def rescales_entries(self) -> bool:
        """Whether entries of one tensor are scaled unlike, as Adam does, so that closed forms do not hold."""
        return self.loop is not None and self.loop.optimiser.rescales_entries

    def without_decay(self, examples: int) -> "Protocol":
        """The client that sends the same less `decay`, where it takes one step."""
        told = self.linear(examples)
        if told is None or not told.decay or len(told.weights) != 1:
            return self
        return self.with_loop(lambda loop: replace(loop, optimiser=loop.optimiser.without_decay()))


def mean_gradient(
    task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: Generator | None, defense: Generator
) -> tuple[Tensors, Tensors]:
    """Gradient of the mean loss. The plain `GradientRule`."""
    del defense
    drawn = None if model is None else model.get_state()

    def loss(p: Tensors) -> tuple[Tensor, Tensors]:
        return task(p, buffers, batch, model)

    try:
        gradient, fresh = grad(loss, has_aux=True)(parameters)
        return dense(gradient), fresh
    except RuntimeError as error:
        refused = error
    if model is not None and drawn is not None:
        model.set_state(drawn)  # what was refused had begun to draw
    with torch.enable_grad():  # which takes some that torch.func does not
        try:
            own = {k: p.detach().requires_grad_() for k, p in parameters.items()}
            twice, leaves = batch.inputs.requires_grad, list(own.values())
            value, fresh = loss(own)
            found = torch.autograd.grad(value, leaves, create_graph=twice, allow_unused=True, materialize_grads=True)
        except RuntimeError:
            raise refused from None
    return dense(dict(zip(own, found, strict=True))), map_tensors(Tensor.detach, fresh)


def example_gradients(
    task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: Generator | None
) -> Tensors:
    """One gradient per example, stacked. Raises `InputError` where no example has one of its own (`refuse_mixing`)."""
    refuse_mixing(task)

    def loss(p: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return task(p, buffers, Batch(x[None], y[None]), model)[0]

    try:
        together: Tensors = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, batch.inputs, batch.labels)
        return together
    except FOREIGN:  # some networks run by themselves, and not under vmap
        alone = (Batch(x[None], y[None]) for x, y in zip(batch.inputs, batch.labels, strict=True))
        single = [mean_gradient(task, parameters, buffers, one, model, Generator())[0] for one in alone]
        return map_tensors(lambda *one: torch.stack(one), *single)


def refuse_mixing(task: Task) -> None:
    """Raises `InputError` where a BatchNorm in train mode mixes examples, or dropout draws for the batch as one."""
    problem = "clipping examples is not simulated with dropout in train mode or a layer that samples (precode)"
    require(not task.stochastic, "defenses", problem, "use mode: eval and no precode")
    for name, part in task.module.named_modules() if task.mode is Mode.TRAIN else ():
        mixes = isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
        problem = f"clipping examples needs per-example gradients, and the BatchNorm '{name}' in train mode mixes them"
        require(not mixes, "defenses", problem, "use GroupNorm, or mode: eval")


def example_rule(stage: Callable[[Tensors, Generator], Tensors]) -> GradientRule:
    """The `GradientRule` of a defence that changes each example's gradient before they are averaged."""

    def rule(
        task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: Generator | None, defense: Generator
    ) -> tuple[Tensors, Tensors]:
        changed = stage(example_gradients(task, parameters, buffers, batch, model), defense)
        return map_tensors(lambda g: g.mean(0), changed), task(parameters, buffers, batch, model)[1]

    return rule
