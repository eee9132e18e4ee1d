"""What knowing the scale of Gaussian noise gives an attacker."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leakgauge.defenses.defense import AttackerView
from leakgauge.tensors import Tensors
from leakgauge.update import Update


def gaussian_view(update: Update, sigma: Tensors, simulate: Callable[[Tensors], Tensors] | None = None) -> AttackerView:
    """The view of one who knows that N(0, σ²) was added, name → σ, and not the draw.

    log p(update | s) = −½ Σ_k ‖(update_k − s_k)/σ_k‖², up to a constant; s = `simulate`(raw).
    """

    def log_likelihood(raw: Tensors) -> Tensor:
        simulated = raw if simulate is None else simulate(raw)
        terms = [
            ((update.tensors[k].to(s) - s) / sigma[k].to(s).clamp_min(1e-30)).square().sum()
            for k, s in simulated.items()
        ]
        return -0.5 * torch.stack(terms).sum()

    return AttackerView(simulate=simulate, noise_scale=sigma, log_likelihood=log_likelihood, gaussian=True)


def replaying_view(stage: Callable[[Tensors, torch.Generator], Tensors], draw: torch.Generator) -> AttackerView:
    """The view of one who knows the draw: `stage` is run again with it."""
    state = draw.get_state()

    def simulate(raw: Tensors) -> Tensors:
        again = torch.Generator()
        again.set_state(state)
        return stage(raw, again)

    return AttackerView(simulate=simulate)
