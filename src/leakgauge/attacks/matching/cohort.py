"""Each client's mechanism inside secure aggregation, as the attacker sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from leakgauge.clients import Protocol, SecureAggregation
from leakgauge.defenses import AttackerView, Defense, view_of
from leakgauge.draws import Draws
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update

Views = Callable[[Draws], AttackerView]
"""A client's own draws → the view of its mechanism."""


def views_of(defense: Defense, update: Update, *, draws_known: bool) -> Views:
    """The view of each client, told apart by its draws; those who do not know the draws see all alike.

    It reads the mean. What a mechanism's view takes from a single update (top-k's support) is there only where all
    clients agree on it; elsewhere the view simulates the mechanism, as it does behind noise.
    """
    return cache(lambda own: view_of(defense, update, own if draws_known else None))


def cohort_view(protocol: Protocol, defense: Defense, update: Update, draws: Draws | None) -> AttackerView:
    """What objectives may use of a mechanism. Behind secure aggregation that is the scale of the mean's noise alone.

    Where the noise follows each update's size, that of the mean stands for it: too small, as clients' updates
    partly cancel.
    """
    if not isinstance(protocol, SecureAggregation):
        return view_of(defense, update, draws)
    count = update.header.example_count
    if draws is not None or count is None:
        return AttackerView()
    return AttackerView(noise_scale=_noise_of(protocol, defense, update, count))


def _noise_of(protocol: Protocol, defense: Defense, update: Update, examples: int) -> Tensors | None:
    """Independent noises of the clients: Σ (nᵢ/N)² σᵢ² is the variance on the mean."""
    if not isinstance(protocol, SecureAggregation):
        header = replace(update.header, example_count=examples)
        return view_of(defense, Update(update.tensors, header), None).noise_scale
    counts = protocol.counts(examples)
    scales = [_noise_of(protocol.client, defense, update, n) for n in counts]
    known = [s for s in scales if s is not None]
    if len(known) < len(scales):
        return None
    weights = [n / examples for n in counts]
    return map_tensors(
        lambda *s: torch.stack([w * v for w, v in zip(weights, s, strict=True)]).square().sum(0).sqrt(), *known
    )
