"""The label of a single example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.classifier import Classifier, find_classifier
from leakgauge.attacks.labels.strategy import LabelGuess, Unknown
from leakgauge.observation import Observation
from leakgauge.registry import LABELS
from leakgauge.update import UpdateKind


@LABELS.register("idlg", needs="one example")
@dataclass(frozen=True)
class IDLG:
    """The only class whose logit the update raises.

    Source: Zhao et al., *iDLG*, 2020: ∂L/∂b_i = p_i − [i = y] < 0 for i = y alone. Without a bias the rows
    ∂L/∂W_i = (p_i − [i = y])·h: the label's row has a negative inner product with every other (iDLG's own
    criterion; no sign of h is assumed), and for two outputs the negative row sum decides.
    Assumes: one example, soft-max cross-entropy with a hard label. Several local steps keep the signs.
    Differs: a delta θ_local − θ_server points the other way and is turned first.
    Confidence: the winner's share of the negative mass; 1 on an undefended update, less under noise.
    Known failure: two outputs, no bias, and features of negative sum give the other class.
    """

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        del generator
        count = observation.examples
        if count != 1:
            return Unknown(f"iDLG reads the label of one example; this update has {count or 'an unknown number'}")
        layer = find_classifier(observation)
        if isinstance(layer, Unknown):
            return layer
        evidence = _evidence(observation, layer)[: observation.task.data.classes]
        negative = (-evidence).clamp_min(0)
        if not bool(negative.sum() > 0):
            return Unknown(
                "no entry of the classifier's gradient is negative: the update is empty or was changed on its way"
            )
        return LabelGuess(negative.argmax().view(1), float(negative.max() / negative.sum()))


def _evidence(observation: Observation, layer: Classifier) -> Float[Tensor, " outputs"]:
    """A number per class, negative for the label."""
    sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
    weight, bias = layer.of(observation.update.tensors)
    if bias is not None:
        return sign * bias
    if len(weight) == 2:
        return sign * weight.sum(1)
    # Rows are c_i·h with Σ c_i = 0 and one c_i of its own sign: the label's row opposes every other.
    gram = weight @ weight.T
    opposed = (gram.sign() < 0).sum(1)
    return torch.where(opposed == opposed.max(), -gram.diagonal(), gram.new_zeros(()))
