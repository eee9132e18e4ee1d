"""Each client's mechanism inside secure aggregation, as the attacker sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

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

    Where the noise follows each update's size it is estimated from the mean as if the clients' updates stood at right
    angles; too large, by up to the root of their number, where they agree.
    """
    if not isinstance(protocol, SecureAggregation):
        return view_of(defense, update, draws)
    count = update.header.example_count
    if draws is not None or count is None:
        return AttackerView()
    return AttackerView(noise_scale=_noise_of(protocol, defense, update, count))


def _noise_of(protocol: Protocol, defense: Defense, update: Update, examples: int) -> Tensors | None:
    """Independent noises of the clients: Σ (nᵢ/N)² σᵢ² is the variance on the mean.

    Of σᵢ² = a + b‖gᵢ‖² the second part is b‖Σ (nᵢ/N) gᵢ‖² on the mean, at right angles: what `b` makes of the mean.
    Doubling the update tells the parts apart.
    """
    if not isinstance(protocol, SecureAggregation):
        header = replace(update.header, example_count=examples)
        return view_of(defense, Update(update.tensors, header), None).noise_scale
    counts = protocol.counts(examples)
    double = Update(map_tensors(lambda t: 2 * t, update.tensors), update.header)
    variance: Tensors | None = None
    for n in counts:
        once, twice = (_noise_of(protocol.client, defense, seen, n) for seen in (update, double))
        if once is None or twice is None:
            return None
        share = n / examples
        own = map_tensors(lambda s, d, w=share: _on_mean(s, d, w), once, twice)
        variance = own if variance is None else map_tensors(torch.add, variance, own)
    return None if variance is None else map_tensors(torch.sqrt, variance)


def _on_mean(once: Tensor, twice: Tensor, share: float) -> Tensor:
    """One client's part of the variance on the mean, from the noise at the mean and at twice the mean."""
    relative = ((twice.square() - once.square()) / 3).clamp_min(0)
    return share**2 * (once.square() - relative).clamp_min(0) + share * relative
