"""The label of a single example behind noise of known scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.attacks.labels.head import stand_ins
from leakgauge.attacks.labels.strategy import LabelGuess, LabelStrategy, Unknown, find_classifier
from leakgauge.attacks.matching.parts import JointSoftLabels
from leakgauge.observation import Observation
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind

STAND_INS = 64
"""Inputs whose mean feature stands for the client's."""


def under_noise(labels: LabelStrategy | JointSoftLabels, scale: Tensors) -> LabelStrategy | JointSoftLabels:
    """The strategy, behind `UnderNoise`; labels that are variables of the search stay so."""
    return labels if isinstance(labels, JointSoftLabels) else UnderNoise(scale, labels)


@dataclass(frozen=True, eq=False)
class UnderNoise:
    """One label from weight and bias of the classifier together, as far as the noise lets each of them speak.

    ∂L/∂b_i = c_i and ∂L/∂W_i = c_i·h with c = p − e_y, so for Gaussian noise of standard deviations σ_b and σ_W
    ĉ_i = (b_i/σ_b² + W_i·h/σ_W²) / (1/σ_b² + ‖h‖²/σ_W²), with the mean feature of stand-ins (`stand_ins`) for h; the
    label has the least ĉ. The bias alone, which iDLG reads, leaves most of it out.
    Confidence: the label's share of exp(−ĉ·‖c‖/var ĉ), ‖c‖² estimated by ‖ĉ‖² less what noise adds. Several examples
    are left to `otherwise`.

    Attributes:
        scale: of the noise on each tensor of the update.
        otherwise: reads several examples, and one where there is no classifier.
    """

    scale: Tensors
    otherwise: LabelStrategy

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        """See above."""
        observation = observation.view
        layer = find_classifier(observation)
        if observation.examples != 1 or isinstance(layer, Unknown):
            return self.otherwise.infer(observation, generator)
        with torch.no_grad():
            # Of a copy: the search starts where that of an attacker who does not know the defence starts.
            inputs = stand_ins(observation, STAND_INS, generator.clone_state())
            h = layer.features(observation.task, inputs)[0].detach().cpu().double().mean(0)
        weight, bias = layer.of(observation.update.tensors)
        noise = self.scale[layer.weight].double().cpu().mean()
        heard, precision = weight @ h / noise**2, h.square().sum() / noise**2
        if bias is not None and layer.bias is not None:
            noise = self.scale[layer.bias].double().cpu().mean()
            heard, precision = heard + bias / noise**2, precision + 1 / noise**2
        if not bool(torch.isfinite(heard).all() & (precision > 0) & torch.isfinite(precision)):
            return self.otherwise.infer(observation, generator)  # a tensor without noise is read as it is
        found = heard[: observation.task.data.classes] / precision
        if observation.update.header.kind is UpdateKind.DELTA:
            found = -found
        size = (found.square().sum() - len(found) / precision).clamp_min(0).sqrt()  # of c, which a clip has scaled
        odds = torch.softmax(-found * size * precision, 0)
        return LabelGuess(found.argmin().view(1), float(odds.max()))
