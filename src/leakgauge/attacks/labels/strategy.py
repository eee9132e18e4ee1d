"""How labels are found: the contract, and labels that are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.observation import Observation
from leakgauge.registry import LABELS


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """Labels read from an update.

    Attributes:
        labels: a sorted multiset, one per example; their order says nothing about the client's.
        confidence: 0 to 1, the share of labels that the method expects to be right (an expected multiset
            F1). Each strategy's docstring says how it is computed and how well it was met when measured.
    """

    labels: Int[Tensor, " n"]
    confidence: float


@dataclass(frozen=True)
class Unknown:
    """No answer: `message` names what the observation lacks."""

    message: str


@runtime_checkable
class LabelStrategy(Protocol):
    """Finds the labels of a batch.

    Guarantees that tests hold: it reads `Knowledge.labels` only if it is `KnownLabels`; the same
    observation and seed give the same answer; what is missing is an `Unknown`, never an exception.
    """

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown: ...


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
