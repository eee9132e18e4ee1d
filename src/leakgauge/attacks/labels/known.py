"""Labels that the attacker was given."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from leakgauge.attacks.labels.strategy import LabelGuess, Unknown
from leakgauge.observation import Observation
from leakgauge.registry import LABELS


@LABELS.register("known", needs="labels")
@dataclass(frozen=True)
class KnownLabels:
    """Takes the labels from the attacker's knowledge, with confidence 1. Reads nothing else."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        del generator
        labels = observation.knowledge.labels
        if labels is None:
            return Unknown("the attacker was not given the labels; add labels to what it knows, or infer them")
        return LabelGuess(labels.detach().sort().values, 1.0)
