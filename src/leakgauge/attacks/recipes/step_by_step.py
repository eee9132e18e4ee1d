"""A start for clients of several local steps: each example from what the last layer says of its own step."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.exact.head_steps import HeadSteps
from leakgauge.attacks.labels.head import stand_ins
from leakgauge.attacks.matching import BoundedLBFGS, Matching, NoPrior, Pixels, TotalVariation, Uniform, falling
from leakgauge.attacks.matching.parts import Objective
from leakgauge.clients.protocol import mean_gradient
from leakgauge.compute import Budget, Compute
from leakgauge.defenses.defense import AttackerView
from leakgauge.observation import Knowledge, Observation, OnStep, Status, Step
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update, UpdateHeader, UpdateKind

SILENT = 1e-5
"""Norm of p − y below which nothing is known of an example's features, and the step moves nothing."""

FIRST, LAST, LEVELS = 3e-2, 1e-5, 8
"""Weights of the total variation over each search, beside a data term of about one at the start."""

REFERENCE = 8
"""Stand-ins whose features say how far two examples are apart."""


@dataclass(frozen=True)
class _FeatureGap(Objective):
    """‖r·hᵀ − r·h*ᵀ‖², in units of what two examples are apart."""

    unit: float

    scale_free: ClassVar[bool] = False

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        return squared_norm({k: simulated[k] - observed[k] for k in observed}) / self.unit


@dataclass(frozen=True, eq=False)
class Begun:
    """Raw examples in the order of the steps, the gradient evaluations that they took, and what ended them early."""

    inputs: Float[Tensor, "n *shape"]
    evaluations: int
    ended: Status | None = None


@dataclass(frozen=True, eq=False)
class StepByStep:
    """One search an example in the order of the steps, under the weights of its own step as far as they are known.

    What the last layer's read gives (`read_head_steps`) is the gradient of that layer for each example alone, at
    batch one. The example that fits it best moves the weights by its step, and the next is searched for under those.
    A start, not an answer: features of a smooth network leave pixels open that the whole update does not.

    Attributes:
        steps: what the last layer says.
        evaluations: most of them for one example.
    """

    steps: HeadSteps
    evaluations: int

    def start(
        self,
        observation: Observation,
        order: int,
        generator: torch.Generator,
        *,
        seconds: float | None = None,
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Begun:
        """For the read's order of that number."""
        told = observation.linear
        assert told is not None
        began = time.perf_counter()
        task = observation.task.to(torch.empty((), dtype=torch.float64))
        labels, unit = torch.tensor(self.steps.orders[order]), self._unit(observation, generator)
        everything, spent = Uniform()(len(labels), task.data, generator), 0
        everything = task.data.denormalise(everything)
        heard = self.steps.slopes[order].norm(dim=1) > SILENT
        parts = torch.arange(len(labels)).split(told.sizes)
        for index, weight in zip(parts, told.weights, strict=True):
            loud = index[heard[index]]
            for k in loud.tolist():
                left = None if seconds is None else seconds - (time.perf_counter() - began)
                if left is not None and left <= 0:
                    return Begun(everything, spent, Status.TIME_LIMIT)
                search, alone = self._alone(task, order, k, int(labels[k]), unit)
                found = search.reconstruct(
                    alone, generator, budget=Budget(seconds=left), compute=compute, on_step=_after(spent, on_step)
                )
                spent += found.cost.gradient_evaluations
                if found.inputs is not None:
                    everything[k] = found.inputs[0].double()
                if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                    return Begun(everything, spent, found.status)
            if len(loud):
                step = Batch(everything[loud], labels[loud])
                gradient, _ = mean_gradient(task, task.parameters, task.buffers, step, None, torch.Generator())
                share = -weight * len(loud) / len(index)
                task = replace(task, parameters=map_tensors(lambda p, g, s=share: p - s * g, task.parameters, gradient))
                spent += 1
        return Begun(everything, spent)

    def _unit(self, observation: Observation, generator: torch.Generator) -> float:
        """Mean squared distance of a stand-in's features from their mean."""
        with torch.no_grad():
            made = stand_ins(observation, REFERENCE, generator)
            features = self.steps.layer.features(observation.task, made)[0].double()
        return float((features - features.mean(0)).square().sum(1).mean())

    def _alone(self, task: Task, order: int, k: int, label: int, unit: float) -> tuple[Matching, Observation]:
        """The search for one example under the weights of its step, and the gradient of the last layer for it."""
        data, layer = task.data, self.steps.layer
        slope, features = self.steps.slopes[order, k], self.steps.features[order, k]
        assert layer.bias is not None
        seen = {layer.weight: torch.outer(slope, features), layer.bias: slope}
        head = replace(
            task,
            parameters={name: task.parameters[name] for name in seen},
            buffers={**task.buffers, **{n: p for n, p in task.parameters.items() if n not in seen}},
        )
        update = Update(seen, UpdateHeader(UpdateKind.GRADIENT, 1))
        smooth = falling(prior=TotalVariation(FIRST, smoothing=1e-6, coupled=True), to=LAST / FIRST, levels=LEVELS)
        search = Matching(
            objective=_FeatureGap(float(slope.square().sum()) * unit),
            prior=smooth if data.is_image else NoPrior(),
            canvas=Pixels(first=Uniform()),
            minimiser=BoundedLBFGS(steps=self.evaluations),
        )
        return search, Observation(head, update, Knowledge(torch.tensor([label]), 1))


def _after(spent: int, on_step: OnStep | None) -> OnStep | None:
    """Steps counted from what was spent before."""
    if on_step is None:
        return None
    return lambda s: on_step(Step(s.index, s.objective, spent + s.gradient_evaluations))
