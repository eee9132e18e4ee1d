"""A whole batch off the rows of a biased linear layer, with labels and a certificate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.explained import Explainer
from leakgauge.attacks.labels.paired import paired_labels
from leakgauge.clients import FedAvg
from leakgauge.compute import Budget, Compute
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind


@ATTACKS.register("closed-form-batch", needs="a linear layer with bias that reads the input; several examples")
@dataclass(frozen=True, kw_only=True)
class BatchRead:
    """`LinearRead` of several examples where it finds all of them: labels by least squares, proof by simulation.

    The examples that rows agree on are sent through the model; the classifier's gradient then gives each its label
    (`paired_labels`), and a simulated update that explains the observed one certifies them. A mixture of examples,
    which rows may agree on too, explains nothing.

    Attributes:
        rows: the read.
    """

    rows: LinearRead = field(default_factory=LinearRead)

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for a read that explains too little of the update."""
        del compute, on_step
        began = time.perf_counter()
        count = observation.examples
        if count == 1:
            return Reconstruction.not_applicable("needs several examples")
        found = self.rows.reconstruct(observation, generator)
        if found.inputs is None or count is None:
            return found
        if len(found.inputs) < count:
            return Reconstruction(None, None, Status.FAILED, found.message)
        gradient = mean_gradient_of(observation)
        labels = None if gradient is None else paired_labels(observation, found.inputs, gradient)
        if labels is None:
            return Reconstruction(None, None, Status.FAILED, f"{found.message}; nothing tells which label is whose")
        batch = Batch(found.inputs, labels)
        explainer = Explainer.of(observation, generator)
        room = budget.gradient_evaluations
        if room is not None and room < (2 + count) * explainer.simulator.cost(count):
            return Reconstruction(None, None, Status.OUT_OF_BUDGET, "the budget has no room for the certificate")
        left = explainer.left(batch)
        certified = explainer.certified(batch, generator)
        return Reconstruction(
            found.inputs,
            labels,
            Status.EXACT if bool(certified.all()) else Status.CONVERGED,
            f"{count} examples read off rows, {left:.1e} of the update's length unexplained",
            label_confidence=None if observation.knowledge.labels is not None else 1.0 - min(left, 1.0),
            cost=Cost(explainer.spent, time.perf_counter() - began),
            certified=certified,
        )


def mean_gradient_of(observation: Observation) -> Tensors | None:
    """The gradient of the mean loss: as sent, or as a delta of small local steps says nearly; `None` if unknown."""
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return observation.update.tensors
    client = observation.knowledge.local_training
    if not isinstance(client, FedAvg) or client.momentum:
        return None
    moved = client.lr * client.steps(observation.examples or 1)
    return map_tensors(lambda t: -t / moved, observation.update.tensors)
