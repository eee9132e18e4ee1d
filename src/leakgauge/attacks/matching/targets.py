"""Targets that are optimised together with the examples: values, labels and masks of which no list can be tried."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakgauge.attacks.labels.shares import average_target
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.step.layout import Layout
from leakgauge.step.parts import Values
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

APART = 0.1  # spread of the first numbers, so that examples are told apart
EDGE = 0.02  # no class starts rarer


@dataclass(frozen=True, eq=False)
class SoughtTargets:
    """Numbers that stand for the targets of a batch, beside the variables of a search; `first`, by name, before they
    are told apart."""

    layout: Layout
    first: Tensors

    @staticmethod
    def of(observation: Observation, generator: torch.Generator) -> SoughtTargets | None:
        """Where the update says what they are on average (`average_target`), from there; `None` where no search moves
        them."""
        layout, count = observation.task.layout, observation.examples
        shapes = layout.sought(count) if observation.task.named and count else {}
        if not shapes:
            return None
        first = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        mean = average_target(_in_one_step(observation), None, generator) if len(shapes) == 1 else None
        if mean is not None:
            ((name, target),) = layout.targets.items()
            if not isinstance(target, Values):
                share = mean.clamp(EDGE, 1 - EDGE)
                single = first[name].shape[1] == 1 and len(share) == 2
                mean = share[1:].logit() if single else share.log() if target.whole else share.logit()
            wide = mean.view(-1, *[1] * (first[name].ndim - 2)) if first[name].ndim > 1 else mean
            first[name] = first[name] + wide
        return SoughtTargets(layout, first)

    def start(self, generator: torch.Generator) -> Tensors:
        return {
            f"target.{name}": mean + APART * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
            for name, mean in self.first.items()
        }

    def soft(self, variables: Tensors) -> Tensor:
        """As `Batch.labels` has them, between those that there are."""
        return self.layout.soft(self._numbers(variables))

    def settled(self, variables: Tensors) -> Tensor:
        return self.layout.soft(self._numbers(variables), settled=True)

    def _numbers(self, variables: Tensors) -> Tensors:
        return {name: variables[f"target.{name}"] for name in self.first}

    def taken(self, task: Task) -> bool:
        """Whether the loss takes targets between those that there are."""
        numbers = {name: mean.to(next(iter(task.parameters.values()))) for name, mean in self.first.items()}
        like = next(iter(numbers.values()))
        grey = torch.full((len(like), *task.data.shape), (task.data.low + task.data.high) / 2).to(like)
        try:
            with torch.no_grad():
                task(task.parameters, task.buffers, Batch(grey, self.layout.soft(numbers)), torch.Generator())
        except FOREIGN:
            return False
        return True


def _in_one_step(observation: Observation) -> Observation:
    """As if small local steps had been one, for who has nothing better."""
    told = observation.linear
    if observation.gradient is not None or told is None or not sum(told.weights):
        return observation
    mean = map_tensors(lambda t: t.double() / sum(told.weights), observation.update.tensors)
    update = Update(mean, UpdateHeader(UpdateKind.GRADIENT, observation.examples))
    return Observation(observation.task, update, replace(observation.knowledge, local_training=None))
