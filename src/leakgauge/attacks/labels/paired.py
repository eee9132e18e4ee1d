"""Labels of examples that are known: from the classifier's gradient, example by example."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakgauge.attacks.labels.classifier import find_classifier
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.observation import Observation
from leakgauge.tensors import Tensors


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
    known = observation.knowledge.labels
    if known is None or len(known) != len(shares):
        return shares.argmax(1)
    slots, which = linear_sum_assignment(-shares[:, known.cpu().long()].numpy())
    labels = known.cpu().clone()
    labels[slots] = known.cpu()[which]
    return labels
