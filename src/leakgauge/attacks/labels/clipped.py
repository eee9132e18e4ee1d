"""The length that a known clip took off an update, found by what makes whole numbers of the counts."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.posterior import mean_field
from leakgauge.attacks.labels.strategy import Classifier
from leakgauge.clients.protocol import Protocol
from leakgauge.observation import Observation

FACTORS, RATIO = 64, 1.1
"""Lengths that are tried, each so many times the one before, from the sent one on."""


def unclipped(
    observation: Observation, layer: Classifier, protocol: Protocol, features: Float[Tensor, "m f"], count: int
) -> Observation:
    """The update at the length at which `mean_field` makes the wholest counts of it.

    A clip multiplies what is read by an unknown factor of at most one, and counts that are read without it are those
    of nobody: of an absent class the bias moves by that factor times the class's probability, of one more example by
    that factor over the batch. Clips of single examples count as one of them all.
    """
    names = [name for name in (layer.weight, layer.bias) if name is not None]

    def longer(power: int, *only: str) -> Observation:
        tensors, by = observation.update.tensors, RATIO**power
        moved = tensors | {name: by * tensors[name] for name in only or tensors}
        return replace(observation, update=replace(observation.update, tensors=moved))

    tried = (mean_field(longer(k, *names), layer, protocol, features, count)[1] for k in range(FACTORS))
    _, power = max((found, -k) for k, found in enumerate(tried))
    return longer(-power)
