"""The classifier's update as it was before a known defence left entries out or shortened it."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.labels.head import stand_ins
from leakgauge.attacks.labels.posterior import mean_field
from leakgauge.attacks.labels.strategy import Classifier
from leakgauge.clients.protocol import Protocol
from leakgauge.observation import Observation
from leakgauge.view.entries import SentTensor, rank_one

STAND_INS = 64
"""Inputs whose mean feature stands for the client's."""
ROUNDS = 20
"""Of alternating least squares."""
ANCHOR = 1e-3
"""Weight of the made-up feature beside one mean row: it decides the sign, and what no row shows."""


def completed(observation: Observation, layer: Classifier, count: int, generator: torch.Generator) -> Observation:
    """The same with ∂L/∂[W b] ≈ c·[h 1]ᵀ in place of classifier entries that were not sent (random-k).

    A random-k drops the label's own entry of the bias more often than not, and the others say too little; its row of
    the weight tells the label all the same. Of one example the product is exact, and c and h follow by alternating
    least squares over what was sent, from the mean feature of `STAND_INS`; of several h stays that feature. Factors of
    an unbiased random-k are taken off. Unchanged where all was sent, of one example behind top-k, which sends the
    label's entry of the bias, and where the defence is not known.

    Args:
        count: examples in the update.
    """
    names = [name for name in (layer.weight, layer.bias) if name is not None]
    parts = [SentTensor.of(observation, name, decay=0.0) for name in names]
    if parts[0].support is None or (parts[0].smallest and count == 1):
        return observation
    every = [part[...] for part in parts]
    sent = torch.cat([e.seen.cpu().view(len(e.value), -1) for e in every if e.seen is not None], 1)
    if bool(sent.all()):
        return observation
    moved = torch.cat([e.value.cpu().view(len(e.value), -1) for e in every], 1)
    inputs = stand_ins(observation, STAND_INS, generator)
    with torch.no_grad():
        feature = layer.features(observation.task, inputs)[0].detach().cpu().double().mean(0)
    start = feature if layer.bias is None else torch.cat([feature, torch.ones(1).double()])
    c, h = rank_one(moved, sent, start, sweeps=ROUNDS if count == 1 else 0, anchor=ANCHOR)
    made = c[:, None] * h
    if not bool(torch.isfinite(made).all()):
        return observation
    filled = torch.where(sent, moved, made).split([moved.shape[1] - len(parts) + 1, *[1] * (len(parts) - 1)], 1)
    tensors = dict(observation.update.tensors)
    tensors |= {n: f.reshape(tensors[n].shape).to(tensors[n]) for n, f in zip(names, filled, strict=True)}
    return replace(observation, update=replace(observation.update, tensors=tensors))


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
