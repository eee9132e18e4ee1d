"""Attacks, defences and models of somebody's own, most of which fail."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from leakgauge.defenses import Defense
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class Raises:
    """Raises whatever it is given."""

    def reconstruct(self, observation, generator, **options):
        raise RuntimeError("no luck")


class Silent:
    """No attack: it cannot reconstruct."""


class RaisingDefense(Defense):
    """A defence of somebody's own that does not work."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        raise ValueError("my defence broke\non two lines")


class Ward(nn.Module):
    """A model as a class, with arguments that say their types and some that do not."""

    def __init__(self, classes: int, width: int = 4, deep=False) -> None:
        super().__init__()
        self.inner = nn.Linear(3 * 16 * 16, width)
        self.outer = nn.Linear(width, classes)
        self.deep = deep

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.sigmoid(self.inner(x.flatten(1))))
