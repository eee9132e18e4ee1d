"""What a server that sees the mean of a cohort sees of a defence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import AttackerView, Defense, view_of
from leakgauge.defenses.steps import DefenseStep, EntryGrid, Noise, Nonlinear
from leakgauge.draws import Draws
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import Update


def cohort_view(protocol: Protocol, defense: Defense, update: Update, draws: Draws | None) -> AttackerView:
    """What objectives may use of a mechanism. Behind secure aggregation that is the scale of the mean's noise and
    of its rounding alone, as if the largest entry of the mean were each client's own part of it.

    Where the noise follows each update's size it is estimated from the mean as if the clients' updates stood at right
    angles; too large, by up to the root of their number, where they agree.
    """
    count = update.header.example_count
    if not protocol.aggregates:
        return view_of(defense, update, draws)
    if draws is not None or count is None:
        return AttackerView()
    grid, clients = view_of(defense, update, None).rounding, protocol.clients(count)
    noise = _noise_of([n for _, n in clients], defense, update)
    steps: tuple[DefenseStep, ...] = (Nonlinear(by="averaging"),)
    if noise is not None:
        steps = *steps, Noise(gaussian=False, deviation=noise)
    if grid is not None:
        steps = *steps, EntryGrid(width=lambda _: map_tensors(lambda t: len(clients) * t, grid))
    return AttackerView(steps, update.tensors)


def _noise_of(counts: Sequence[int], defense: Defense, update: Update) -> Tensors | None:
    """Independent noises of the clients: Σ (nᵢ/N)² σᵢ² is the variance on the mean.

    Of σᵢ² = a + b‖gᵢ‖² the second part is b‖Σ (nᵢ/N) gᵢ‖² on the mean, at right angles: what `b` makes of the mean.
    Doubling the update tells the parts apart.
    """
    double = map_tensors(lambda t: 2 * t, update.tensors)
    variance: Tensors | None = None
    for n in counts:
        header = replace(update.header, example_count=n)
        once, twice = (view_of(defense, Update(t, header), None).noise_scale for t in (update.tensors, double))
        if once is None or twice is None:
            return None
        share = n / sum(counts)
        own = map_tensors(lambda s, d, w=share: _on_mean(s, d, w), once, twice)
        variance = own if variance is None else map_tensors(torch.add, variance, own)
    return None if variance is None else map_tensors(torch.sqrt, variance)


def _on_mean(once: Tensor, twice: Tensor, share: float) -> Tensor:
    """One client's part of the variance on the mean, from the noise at the mean and at twice the mean."""
    relative = ((twice.square() - once.square()) / 3).clamp_min(0)
    return share**2 * (once.square() - relative).clamp_min(0) + share * relative
