"""A whole batch off the rows of a biased linear layer, with labels and a certificate."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.linear import LinearRead
from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.attacks.labels.tried import assigned, tried_labels
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.compute import Budget, Compute
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, map_tensors


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
        observation = observation.view
        count = observation.examples
        if count == 1:
            return Reconstruction.not_applicable("needs several examples")
        found = self.rows.reconstruct(observation, generator)
        if found.inputs is None or count is None:
            return found
        if len(found.inputs) < count:
            return replace(found, labels=None, paired=False)
        gradient = mean_gradient_of(observation)
        labels = None if gradient is None else paired_labels(observation, found.inputs, gradient)
        explainer = Explainer.of(observation, generator)
        room, price = budget.gradient_evaluations, (2 + count) * explainer.simulator.cost(count)
        if labels is None and (room is None or room >= price + observation.task.data.classes):
            tried = tried_labels(observation, found.inputs)
            labels, explainer.spent = (None, 0) if tried is None else (tried.labels, tried.cost)
        if labels is None:
            words = f"{found.message}; nothing tells which label is whose"
            return replace(found, labels=None, message=words, paired=False)
        batch = Batch(found.inputs, labels)
        if room is not None and room < price:
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
    observation = observation.view
    told = observation.linear
    return None if told is None else map_tensors(lambda t: t / told.total, observation.update.tensors)


def paired_labels(
    observation: Observation, inputs: Float[Tensor, "n *shape"], gradient: Tensors
) -> Int[Tensor, " n"] | None:
    """The label of each of all examples of a batch, which were read in some order.

    n·∂L/∂W = Σ_k (p_k − e_k) h_kᵀ and n·∂L/∂b = Σ_k (p_k − e_k) for the classifier, whose inputs h_k and answers p_k
    follow from the examples: linear in the one-hot labels e_k, and solved by least squares. Where the multiset is known
    the most likely assignment of it is taken, else the largest entry of each.

    Args:
        gradient: of the mean loss, as one local step has it.

    Returns:
        `None` where the model has no linear classifier.
    """
    observation = observation.view
    layer = find_classifier(observation)
    if isinstance(layer, Unknown):
        return None
    task = observation.task
    with torch.no_grad():
        like = next(iter(task.parameters.values()))
        features, logits = layer.features(task, inputs.to(like))
    h, p = features.detach().cpu().double(), logits.detach().cpu().double().softmax(1)
    slope, offset = layer.of(gradient)
    if offset is not None:
        h, slope = torch.cat([h, h.new_ones(len(h), 1)], 1), torch.cat([slope, offset[:, None]], 1)
    explained = p.T @ h - len(h) * slope  # Σ e_k h_kᵀ, classes by features
    shares: Tensor = (explained @ torch.linalg.pinv(h)).T[:, : task.data.classes]
    return assigned(shares, observation.knowledge.labels)
