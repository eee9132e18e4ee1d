"""Interim label recovery, replaced by the full strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from leakgauge.observation import Observation
from leakgauge.registry import LABELS
from leakgauge.update import UpdateKind


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """A sorted multiset of labels and a confidence in [0, 1]."""

    labels: Tensor
    confidence: float


@dataclass(frozen=True)
class Unknown:
    """What is missing."""

    message: str


@runtime_checkable
class LabelStrategy(Protocol):
    """Finds labels."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown: ...


@LABELS.register("counts")
@dataclass(frozen=True)
class CountsFromLastLayer:
    """Interim."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        count = observation.example_count
        if count is None:
            return Unknown("needs the number of examples (knows: example_count)")
        linear = [(n, m) for n, m in observation.task.module.named_modules() if isinstance(m, nn.Linear)]
        if not linear or linear[-1][1].bias is None:
            return Unknown("the model has no linear classifier with bias")
        name = linear[-1][0]
        scale = 1.0
        if observation.update.header.kind is UpdateKind.DELTA:
            local = observation.knowledge.local_training
            if local is None:
                return Unknown("needs local_training")
            scale = -1 / (getattr(local, "lr", 1.0) * local.steps(count))
        t, p = observation.update.tensors, observation.task.parameters
        gb, gw = scale * t[f"{name}.bias"], scale * t[f"{name}.weight"]
        h = (gb @ gw) / gb.square().sum().clamp_min(1e-12)
        probabilities = (p[f"{name}.weight"] @ h + p[f"{name}.bias"]).softmax(0)
        n = (count * (probabilities - gb))[: observation.task.data.classes].clamp_min(0)
        whole = n.floor()
        while int(whole.sum()) < count:
            whole[(n - whole).argmax()] += 1
        labels = torch.repeat_interleave(torch.arange(len(whole)), whole.long())[:count]
        return LabelGuess(labels, 0.5)


@LABELS.register("idlg")
@dataclass(frozen=True)
class IDLG(CountsFromLastLayer):
    """Interim."""
