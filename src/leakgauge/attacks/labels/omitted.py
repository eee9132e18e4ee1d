"""The classifier's update with the entries filled in that a known defence left out, whatever their size."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.labels.head import stand_ins
from leakgauge.attacks.labels.strategy import Classifier
from leakgauge.defenses import kept_factor, view_of
from leakgauge.observation import Observation

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
    known = observation.knowledge
    view = None if known.defense is None else view_of(known.defense, observation.update, known.draws)
    if view is None or view.support is None or (view.unsent_small and count == 1):
        return observation
    sent = torch.cat([view.support[layer.weight].cpu(), _column(view.support, layer)], 1).bool()
    weight, bias = layer.of(_unscaled(observation, layer))
    moved = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    if bool(sent.all()):
        return observation
    inputs = stand_ins(observation, STAND_INS, generator)
    with torch.no_grad():
        feature = layer.features(observation.task, inputs)[0].detach().cpu().double().mean(0)
    start = feature if bias is None else torch.cat([feature, torch.ones(1).double()])
    made = _rank_one(moved, sent, start, ROUNDS if count == 1 else 1)
    if not bool(torch.isfinite(made).all()):
        return observation
    filled = torch.where(sent, moved, made)
    tensors = dict(observation.update.tensors)
    tensors[layer.weight] = filled[:, : weight.shape[1]].to(tensors[layer.weight])
    if layer.bias is not None:
        tensors[layer.bias] = filled[:, -1].to(tensors[layer.bias])
    return replace(observation, update=replace(observation.update, tensors=tensors))


def _unscaled(observation: Observation, layer: Classifier) -> dict[str, Tensor]:
    """The classifier's tensors without the factors of a random-k, which differ, as k is rounded up."""
    sent, defense = observation.update.tensors, observation.knowledge.defense
    names = [name for name in (layer.weight, layer.bias) if name is not None]
    return {name: sent[name].detach().double() / kept_factor(defense, sent[name]) for name in names}


def _column(support: dict[str, Tensor], layer: Classifier) -> Bool[Tensor, "outputs k"]:
    rows = len(support[layer.weight])
    return torch.ones(rows, 0).bool() if layer.bias is None else support[layer.bias].cpu().bool()[:, None]


def _rank_one(
    moved: Float[Tensor, "rows d"], sent: Bool[Tensor, "rows d"], start: Float[Tensor, " d"], rounds: int
) -> Float[Tensor, "rows d"]:
    """c·hᵀ nearest to what was sent, from a first h; rows of which nothing was sent are zero."""
    tiny, mask = torch.finfo(moved.dtype).tiny, sent.to(moved)
    moved, h, c = moved * mask, start, moved.new_zeros(len(moved))
    for step in range(rounds):
        c = (moved @ h) / (mask @ h.square()).clamp_min(tiny)
        if step + 1 < rounds:
            anchor = ANCHOR * c.square().mean()
            h = (c @ moved + anchor * start) / (c.square() @ mask + anchor).clamp_min(tiny)
    return c[:, None] * h
